"""From a seed to a history: steps, faults in their midst, and what others do meanwhile. Plays nothing.

A history is drawn whole before it is played, so it can be printed, replayed and cut down step by step. What does not
apply when its turn comes, such as the end of a task where none runs, is passed over.

Two modes, by turns. Strict, even seeds: Redis loses nothing, edits are mirrored at once, nobody sweeps but after a
move; so no enabled schedule may be absent at any step. Lossy: everything is lost now and then, and the sweeps heal it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from .faults import Fault

LEASE_MS = 30_000
WORKERS = 3
#: How many steps a history has.
FEWEST, MOST = 25, 60

NAMES = ("a", "a", "b", "c")
QUEUES = ("default", "default", "mail")
EVERY = (7, 10, 25)
TIMES = (1, 1000, 4000, 8000, 10_000, 15_000, LEASE_MS)
ALIASES = ("default", "default", "brief")
#: In which transaction jobs are enqueued: see `Callers.enqueue`.
HOW = ("alone", "alone", "alone", "atomic", "savepoint", "undone", "open")
#: The scripts that a kind of step sends, and the places of `failpoints` that it passes.
SEAMS = {
    "claim": (["claim", "settle", "renew"], ["before_claim", "after_claim", "after_judge"]),
    "flush": (
        ["settle", "settle", "settle", "upsert"],
        ["before_ledger", "after_ledger", "after_ledger", "after_settle"],
    ),
    "renew": (["renew"], []),
    "release": (["settle"], []),
    "sweep": (["upsert", "upsert", "remove", "epoch"], ["during_rebuild"]),
    "web": (["upsert", "remove"], ["before_mirror"]),
    "jobs": (["upsert"], ["before_mirror"]),
    "changes": (["upsert", "upsert", "remove"], ["before_mirror"]),
}


@dataclass
class Step:
    """A method of `World` with its arguments, and the fault that strikes it."""

    name: str
    arguments: dict
    fault: Fault | None = None

    def __str__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.arguments.items()]
        if self.fault is not None:
            given.append(f"fault={self.fault}")
        return f"world.{self.name}({', '.join(given)})"

    @property
    def meanwhile(self) -> tuple[str, dict]:
        """The step as `Fault.steps` has it."""
        return self.name, self.arguments

    def simpler(self) -> Iterator["Step"]:
        """Yield the same step with less that strikes it."""
        if self.fault is not None:
            yield replace(self, fault=None)
            for at in range(len(self.fault.steps)):
                left = [*self.fault.steps[:at], *self.fault.steps[at + 1 :]]
                yield replace(self, fault=replace(self.fault, steps=left))


@dataclass
class Plan:
    """A history that can be played by `play.play`."""

    seed: int
    steps: list[Step] = field(default_factory=list)

    @property
    def lossy(self) -> bool:
        """Whether Redis, its clock, the database and the signals fail too."""
        return bool(self.seed % 2)

    def __str__(self) -> str:
        return "\n".join(f"    {step}" for step in self.steps)


def plan(seed: int) -> Plan:
    """Return the history of a seed; the same one each time."""
    return Plan(seed, Draw(Random(seed), lossy=bool(seed % 2)).history())


class Draw:
    """Draws steps from a random generator."""

    def __init__(self, random: Random, *, lossy: bool) -> None:
        self.random, self.lossy = random, lossy
        step, w, index = self.step, range(WORKERS), range(6)
        kinds, ok, seen = ("delta", "full", "rebuild"), (True, False), (True, False)
        #: What others do too while somebody stands still.
        self.advance, self.commit = step("advance", ms=TIMES), step("commit", index=range(3), dies=(True, False))
        self.delete, self.late = step("delete", name=NAMES), step("late", back=range(20))
        self.move = step("edit", name=NAMES, queue=QUEUES)
        self.change = step("change", name=NAMES, changes=self.changes)
        common = [
            (10, step("claim", "claim", w=w, limit=(1, 5))), (8, step("take", "claim", w=w)),
            (8, step("begin", w=w, dies=(False, False, True))), (10, step("end", w=w, index=index, ok=ok)),
            (10, step("flush", "flush", w=w)), (10, step("work", "flush", w=w, ok=ok)),
            (4, step("look", "claim", w=w)), (5, step("renew", "renew", w=w)), (3, step("release", "release", w=w)),
            (3, step("kill", w=w)), (1, step("stop", "release", w=w)), (10, self.advance),
            (4, step("advance", ms=LEASE_MS + 1)), (3, self.create),
            (1, step("create", name=NAMES, once_in=(5, 20))), (6, self.change), (3, self.move), (2, self.delete),
            (3, step("order", name=NAMES)), (4, step("sweep", w=w, kind="delta")), (4, self.late),
            (1, step("skew_worker", w=w, ms=(-600_000, 600_000))), (12, self.enqueue), (2, self.commit),
            (3, step("cancel", "changes", index=index)),
            (3, step("reschedule", "changes", index=index, ahead=(0, 10, 40))), (3, step("retry", "jobs", index=index)),
        ]  # fmt: skip
        losses = [
            (5, step("sweep", "sweep", w=w, kind=kinds)), (4, step("keep_up", "sweep", w=w)),
            (3, step("change", "web", name=NAMES, changes=self.changes, seen=seen)),
            (2, step("delete", "web", name=NAMES, seen=seen)), (2, step("order", "web", name=NAMES, seen=False)),
            (3, step("flush_redis", shard=(None, None, 0, 1))), (2, step("snapshot")), (2, step("rollback")),
            (2, step("dump")), (1, step("restore")), (1, step("jump", ms=(-40_003, -1003, 40_007))),
            # Forward. Back, edits would take effect later than they are made.
            (1, step("skew", who="web", ms=20_000)), (0.3, step("reshard", count=(1, 2, 3))),
        ]  # fmt: skip
        drawn = common + losses if lossy else common
        self._weights, self._methods = zip(*drawn, strict=True)

    def history(self) -> list[Step]:
        """Return a whole history."""
        steps = [
            Step("create", {"name": name, "every": self.one(EVERY), "queue": self.one(QUEUES), **self.policies()})
            for name in "abc"[: self.random.randint(0, 3)]
        ]
        methods = self.random.choices(self._methods, self._weights, k=self.random.randint(FEWEST, MOST))
        return steps + [method() for method in methods]

    # -- parts

    def one(self, values):
        """Choose one."""
        return self.random.choice(values)

    def step(self, name, kind="", /, **arguments):
        """Return what draws such a step: arguments of which some can be chosen, and the fault that strikes its kind."""

        def draw():
            drawn = {}
            for key, value in arguments.items():
                drawn[key] = (
                    self.one(value) if isinstance(value, tuple | range) else value() if callable(value) else value
                )
            return Step(name, drawn, self.fault(kind) if kind else None)

        return draw

    def policies(self):
        """Choose what a schedule does when it is late, busy or fails."""
        return {
            "overlap": self.one(("skip", "queue_one", "queue_all", "queue_all", "allow")),
            "missed": self.one(("latest", "all", "all", "skip")),
            "max_attempts": self.one((1, 3)),
        }

    def changes(self):
        """Choose what an edit changes."""
        return self.one(
            (
                {"every": self.one(EVERY)},
                {"start_in": self.one((3, 15))},
                {"end_in": self.one((-1, 12))},
                {"enabled": self.one((True, False))},
                self.policies(),
            )
        )

    def fault(self, kind):
        """Choose what strikes a step of this kind; half of the time nothing."""
        if self.random.random() < 0.5:
            return None
        scripts, points = SEAMS[kind]
        seams = [f"{at}:{script}" for script in scripts for at in ("send", "reply")]
        nth = self.one((1, 1, 2))
        # What is lost closes the way of all web processes to Redis for a while: edits would come late.
        effects = ["lose", "pause", "pause"] if self.lossy or kind not in ("jobs", "changes") else ["pause", "pause"]
        effects += ["kill"] if kind != "web" else []
        effects += ["database", "edit"] if kind == "flush" else []
        effect = self.one(effects)
        if effect == "database":
            return Fault(self.one(("before_ledger", "after_ledger")), "database")
        if effect == "edit":
            return Fault("after_ledger", "pause", 1, [self.change().meanwhile])
        if effect == "pause":
            return Fault(self.one(seams + points), "pause", nth, self.meanwhile())
        return Fault(self.one(seams if effect == "lose" else seams + points), effect, nth)

    def meanwhile(self):
        """Choose what others do while somebody stands still: often long enough to lose a lease."""
        lapse = Step("advance", {"ms": LEASE_MS + 1})
        w, step = range(WORKERS), self.step
        take, work = step("take", w=w), step("work", w=w, ok=(True, False))
        makers = [
            lambda: lapse, self.advance, take, work, step("finish_running", w=w, ok=(True, False)), self.change,
            self.delete, step("create", name=NAMES, every=EVERY), self.late, step("cancel", index=range(6)),
            step("retry", index=range(6)), self.commit,
        ]  # fmt: skip
        if self.lossy:
            makers += [step("flush_redis"), step("sweep", w=w, kind=("delta", "full", "rebuild")), self.move]
        some = [self.one(makers)().meanwhile for _ in range(self.random.randint(1, 4))]
        if self.random.random() < 0.5:
            return some
        taken = self.one((take, work))()
        return [lapse.meanwhile, taken.meanwhile, *some]

    def create(self):
        """Make a schedule."""
        drawn = {"name": self.one(NAMES), "every": self.one(EVERY), "queue": self.one(QUEUES)}
        return Step("create", {**drawn, **self.policies()})

    def enqueue(self):
        """Enqueue jobs."""
        made = self.step(
            "enqueue", alias=ALIASES, queue=QUEUES, ahead=(0, 0, 0, 5, 40), priority=(0, 0, 0, -1, 2, 50),
            unique=(None, None, "k", "k", "l"), until=("start", "end"), attempts=(1, 3), calls=(True, False),
            many=(1, 1, 3, 8), how=HOW,
        )()  # fmt: skip
        if made.arguments["how"] == "open":
            made.arguments["unique"] = None
        made.fault = self.fault("jobs")
        return made
