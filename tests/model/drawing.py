"""What Hypothesis draws from: times, definitions, faults in the midst of a step, and what others do meanwhile."""

from hypothesis import strategies as st

from .faults import Fault
from .world import WORKERS

LEASE_MS = 30_000
NAMES = st.sampled_from(["a", "a", "b", "c"])
W = st.integers(0, WORKERS - 1)
INDEX = st.integers(0, 5)
QUEUES = st.sampled_from(["default", "default", "mail"])
EVERY = st.sampled_from([7, 10, 25])
TIMES = st.sampled_from([1, 1000, 4000, 8000, 10_000, 15_000, LEASE_MS])
POLICIES = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(["skip", "queue_one", "queue_all", "queue_all", "allow"]),
        "missed": st.sampled_from(["latest", "all", "all", "skip"]),
        "max_attempts": st.sampled_from([1, 3]),
    }
)
CHANGES = st.one_of(
    st.builds(lambda every: {"every": every}, EVERY),
    st.builds(lambda ahead: {"start_in": ahead}, st.sampled_from([3, 15])),
    st.builds(lambda ahead: {"end_in": ahead}, st.sampled_from([-1, 12])),
    st.builds(lambda enabled: {"enabled": enabled}, st.booleans()),
    POLICIES,
)
#: The scripts that a kind of step sends, and the places of `failpoints` that it passes.
SEAMS = {
    "claim": (["claim", "release", "renew"], ["before_claim", "after_claim", "after_judge"]),
    "flush": (
        ["settle", "settle", "retry", "enqueue"],
        ["before_ledger", "after_ledger", "after_ledger", "after_settle"],
    ),
    "renew": (["renew"], []),
    "release": (["release"], []),
    "sweep": (["upsert", "remove", "epoch", "enqueue"], ["during_rebuild"]),
    "web": (["upsert", "remove", "enqueue"], ["before_mirror"]),
}


def step(name, /, **arguments):
    """Return a strategy for one step as `Fault.steps` has it."""
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


def meanwhile(*, lossy):
    """Return what others do while somebody stands still in the midst of a step: often long enough to lose a lease."""
    lapse = step("advance", ms=st.just(LEASE_MS + 1))
    steps = [
        lapse,
        step("advance", ms=TIMES),
        step("take", w=W),
        step("work", w=W, ok=st.booleans()),
        step("finish_running", w=W, ok=st.booleans()),
        step("change", name=NAMES, changes=CHANGES),
        step("delete", name=NAMES),
        step("create", name=NAMES, every=EVERY),
        step("late", back=INDEX),
    ]
    if lossy:
        steps += [
            step("flush_redis"),
            step("sweep", w=W, kind=st.sampled_from(["delta", "full", "rebuild"])),
            step("change", name=NAMES, changes=st.builds(lambda queue: {"queue": queue}, QUEUES)),
        ]
    some = st.lists(st.one_of(steps), min_size=1, max_size=4)
    overtaken = st.tuples(lapse, st.one_of(step("take", w=W), step("work", w=W, ok=st.booleans()))).map(list)
    return st.one_of(some, st.builds(list.__add__, overtaken, some))


def faults(kind, *, lossy=False):
    """Return a strategy for what strikes a step of this kind; half of the time nothing."""
    scripts, points = SEAMS[kind]
    seams = [f"{at}:{script}" for script in scripts for at in ("send", "reply")]
    nth = st.sampled_from([1, 1, 2])
    found = [
        st.builds(Fault, st.sampled_from(seams), st.just("lose"), nth),
        st.builds(Fault, st.sampled_from(seams + points), st.just("pause"), nth, meanwhile(lossy=lossy)),
        st.builds(Fault, st.sampled_from(seams + points), st.just("pause"), nth, meanwhile(lossy=lossy)),
    ]
    if kind != "web":
        found.append(st.builds(Fault, st.sampled_from(seams + points), st.just("kill"), nth))
    if kind == "flush":
        found.append(st.builds(Fault, st.sampled_from(["before_ledger", "after_ledger"]), st.just("database")))
        edit = step("change", name=NAMES, changes=CHANGES).map(lambda item: [item])
        found.append(st.builds(Fault, st.just("after_ledger"), st.just("pause"), st.just(1), edit))
    return st.one_of(*[st.none()] * len(found), *found)
