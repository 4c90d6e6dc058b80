"""Histories drawn from seeds, of real workers and the real scripts on a real server, in virtual time; see plan.py.

The same seeds each time: a chance find stops no unrelated change. New ones are played by `python -m tests.simulation`,
a whole range on all processors. DELAYQ_SIMULATION_SEED=88 plays that one alone.
"""

import os
import time
from itertools import count

import pytest

from .plan import plan
from .play import examine, play

#: Two tests, so that two processes share the work.
HALVES = 2
#: What the many histories must come to, or they would prove little: counted in `Stage.seen`.
SEEN = (
    "recorded", "refused", "taken over", "handed over", "late", "killed", "attempt failed", "rebuilt", "wound back",
    "restored", "edited under a lease", "stretch left by an edit", "job ended", "job taken over", "job cancelled",
    "job moved", "job retried", "killed after a commit", "resharded", "shown while it runs",
)  # fmt: skip
#: Seeds of each half in the default run, and of the many; the most that these may need to come to everything.
FEW_SEEDS, MANY_SEEDS, MOST_SEEDS = 10, 30, 1000


def seeds(half, offset):
    """Yield the seeds of one half: pairs of both modes, every other one."""
    if "DELAYQ_SIMULATION_SEED" in os.environ:
        yield from [int(os.environ["DELAYQ_SIMULATION_SEED"])][half:]
        return
    for pair in count(offset // 2 + half, HALVES):
        yield from (2 * pair, 2 * pair + 1)


def play_seeds(stage, half, offset, number, capsys, *, wanted=()):
    """Play so many seeds, and further ones until they have come to all that is wanted."""
    began = time.monotonic()
    for played, seed in enumerate(seeds(half, offset), 1):
        report = examine(stage, plan(seed))
        assert report is None, report
        missing = [name for name in wanted if not stage.seen[name]]
        if played >= number and not missing:
            break
        assert played < MOST_SEEDS, f"no history came to: {', '.join(missing)}"
    with capsys.disabled():
        print(f"\n{stage.summary(time.monotonic() - began)}")


@pytest.mark.parametrize("half", range(HALVES))
def test_no_history_breaks_a_promise(stage, half, capsys):
    play_seeds(stage, half, 0, FEW_SEEDS, capsys)


@pytest.mark.everything
@pytest.mark.parametrize("half", range(HALVES))
def test_no_history_of_many_breaks_a_promise(stage, half, capsys):
    play_seeds(stage, half, 10_000, MANY_SEEDS, capsys, wanted=SEEN)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_is_the_same_history_each_time(stage, seed):
    def requests():
        assert play(stage, plan(seed)) is None
        return [(request.owner, request.name, len(request.args)) for request in stage.world.requests]

    assert requests() == requests()
