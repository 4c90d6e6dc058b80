"""F24: workers are killed, drained and stopped at random, and others are started in their place."""

import random

import pytest

from tests.faults.soak.arena import arena
from tests.faults.soak.kinds import drain_worker, kill_worker, stop_worker
from tests.faults.soak.run import soak

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("shards")]


@pytest.mark.parametrize(
    ("workers", "count", "seconds", "lease"),
    [pytest.param(4, 20, 16, 1, id="short"), pytest.param(12, 50, 90, 2, marks=pytest.mark.long, id="long")],
)
def test_f24_workers_that_come_and_go_lose_and_double_nothing(
    workers, count, seconds, lease, prefix, tmp_path, note_row
):
    seed = random.randrange(10**6)
    print("seed", seed)
    with arena(
        tmp_path, workers=workers, schedules=count, lease_seconds=lease, seed=seed, elder_of=workers + 1
    ) as place:
        faults = (kill_worker, kill_worker, drain_worker, stop_worker)
        outcome = soak(place, seconds, faults=faults, edits=False, storm_seconds=6)
    for row in outcome.rows():
        note_row(row.named(f"F24 {row.fault}"))
    assert outcome.verdict.points > 10 * count
    assert outcome.complaints(timed=seconds >= 90) == []
