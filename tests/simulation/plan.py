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
    "claim": (
        ["claim", "settle", "renew"],
        ["before_claim", "after_claim", "after_judge"],
    ),
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
        common = [
            (10, self.claim), (8, self.take), (8, self.begin), (10, self.end), (10, self.flush), (10, self.work),
            (4, self.look), (5, self.renew), (3, self.release), (3, self.kill), (1, self.stop), (10, self.advance),
            (4, self.lapse), (3, self.create), (1, self.create_once), (6, self.change), (3, self.move),
            (2, self.delete), (3, self.order), (4, self.delta), (4, self.late), (1, self.skew_worker),
            (12, self.enqueue), (2, self.commit), (3, self.cancel), (3, self.reschedule), (3, self.retry),
        ]  # fmt: skip
        losses = [
            (5, self.sweep), (4, self.keep_up), (3, self.change_missed), (2, self.delete_missed),
            (2, self.order_missed), (3, self.flush_redis), (2, self.snapshot), (2, self.rollback), (2, self.dump),
            (1, self.restore), (1, self.jump), (1, self.skew_web), (0.3, self.reshard),
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

    def w(self):
        """Choose a worker; of those that can do the step, where not all can."""
        return self.random.randrange(WORKERS)

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
        makers = [
            lambda: lapse,
            self.advance,
            lambda: Step("take", {"w": self.w()}),
            lambda: Step("work", {"w": self.w(), "ok": self.one((True, False))}),
            lambda: Step("finish_running", {"w": self.w(), "ok": self.one((True, False))}),
            lambda: Step("change", {"name": self.one(NAMES), "changes": self.changes()}),
            self.delete,
            lambda: Step("create", {"name": self.one(NAMES), "every": self.one(EVERY)}),
            self.late,
            lambda: Step("cancel", {"index": self.random.randrange(6)}),
            lambda: Step("retry", {"index": self.random.randrange(6)}),
            self.commit,
        ]
        if self.lossy:
            makers += [
                lambda: Step("flush_redis", {}),
                lambda: Step("sweep", {"w": self.w(), "kind": self.one(("delta", "full", "rebuild"))}),
                self.move,
            ]
        some = [self.one(makers)().meanwhile for _ in range(self.random.randint(1, 4))]
        if self.random.random() < 0.5:
            return some
        taken = self.one((makers[2], makers[3]))()
        return [lapse.meanwhile, taken.meanwhile, *some]

    # -- workers

    def claim(self):
        return Step("claim", {"w": self.w(), "limit": self.one((1, 5))}, self.fault("claim"))

    def take(self):
        return Step("take", {"w": self.w()}, self.fault("claim"))

    def look(self):
        return Step("look", {"w": self.w()}, self.fault("claim"))

    def begin(self):
        return Step("begin", {"w": self.w(), "dies": self.one((False, False, True))})

    def end(self):
        return Step("end", {"w": self.w(), "index": self.random.randrange(6), "ok": self.one((True, False))})

    def flush(self):
        return Step("flush", {"w": self.w()}, self.fault("flush"))

    def work(self):
        return Step("work", {"w": self.w(), "ok": self.one((True, False))}, self.fault("flush"))

    def renew(self):
        return Step("renew", {"w": self.w()}, self.fault("renew"))

    def release(self):
        return Step("release", {"w": self.w()}, self.fault("release"))

    def kill(self):
        return Step("kill", {"w": self.w()})

    def stop(self):
        return Step("stop", {"w": self.w()}, self.fault("release"))

    def advance(self):
        return Step("advance", {"ms": self.one(TIMES)})

    def lapse(self):
        return Step("advance", {"ms": LEASE_MS + 1})

    def delta(self):
        return Step("sweep", {"w": self.w(), "kind": "delta"})

    def sweep(self):
        return Step("sweep", {"w": self.w(), "kind": self.one(("delta", "full", "rebuild"))}, self.fault("sweep"))

    def keep_up(self):
        return Step("keep_up", {"w": self.w()}, self.fault("sweep"))

    # -- people

    def create(self):
        drawn = {"name": self.one(NAMES), "every": self.one(EVERY), "queue": self.one(QUEUES)}
        return Step("create", {**drawn, **self.policies()})

    def create_once(self):
        return Step("create", {"name": self.one(NAMES), "once_in": self.one((5, 20))})

    def change(self):
        return Step("change", {"name": self.one(NAMES), "changes": self.changes()})

    def move(self):
        return Step("edit", {"name": self.one(NAMES), "queue": self.one(QUEUES)})

    def delete(self):
        return Step("delete", {"name": self.one(NAMES)})

    def order(self):
        return Step("order", {"name": self.one(NAMES)})

    def change_missed(self):
        drawn = {"name": self.one(NAMES), "changes": self.changes(), "seen": self.one((True, False))}
        return Step("change", drawn, self.fault("web"))

    def delete_missed(self):
        return Step("delete", {"name": self.one(NAMES), "seen": self.one((True, False))}, self.fault("web"))

    def order_missed(self):
        return Step("order", {"name": self.one(NAMES), "seen": False}, self.fault("web"))

    # -- jobs

    def enqueue(self):
        drawn = {
            "alias": self.one(ALIASES),
            "queue": self.one(QUEUES),
            "ahead": self.one((0, 0, 0, 5, 40)),
            "priority": self.one((0, 0, 0, -1, 2, 50)),
            "unique": self.one((None, None, "k", "k", "l")),
            "until": self.one(("start", "end")),
            "attempts": self.one((1, 3)),
            "calls": self.one((True, False)),
            "many": self.one((1, 1, 3, 8)),
            "how": self.one(HOW),
        }
        if drawn["how"] == "open":
            drawn["unique"] = None
        return Step("enqueue", drawn, self.fault("jobs"))

    def commit(self):
        return Step("commit", {"index": self.random.randrange(3), "dies": self.one((True, False))})

    def cancel(self):
        return Step("cancel", {"index": self.random.randrange(6)}, self.fault("changes"))

    def reschedule(self):
        drawn = {"index": self.random.randrange(6), "ahead": self.one((0, 10, 40))}
        return Step("reschedule", drawn, self.fault("changes"))

    def retry(self):
        return Step("retry", {"index": self.random.randrange(6)}, self.fault("jobs"))

    # -- others

    def late(self):
        return Step("late", {"back": self.random.randrange(20)})

    def skew_worker(self):
        return Step("skew_worker", {"w": self.w(), "ms": self.one((-600_000, 600_000))})

    def flush_redis(self):
        return Step("flush_redis", {"shard": self.one((None, None, 0, 1))})

    def snapshot(self):
        return Step("snapshot", {})

    def rollback(self):
        return Step("rollback", {})

    def dump(self):
        return Step("dump", {})

    def restore(self):
        return Step("restore", {})

    def reshard(self):
        return Step("reshard", {"count": self.one((1, 2, 3))})

    def jump(self):
        return Step("jump", {"ms": self.one((-40_003, -1003, 40_007))})

    def skew_web(self):
        """Set the wall clock of the web processes forward. Back, edits would take effect later than they are made."""
        return Step("skew", {"who": "web", "ms": 20_000})
