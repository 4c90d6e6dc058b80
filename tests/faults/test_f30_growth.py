"""F30: under full load, with faults all the time, a worker keeps its memory, its threads and its descriptors."""

import random

import pytest

from tests.faults.harness.usage import AVAILABLE
from tests.faults.soak.arena import arena
from tests.faults.soak.kinds import cut, delay, flush, half_close, kill_redis, lock_database, lose_replies, refuse
from tests.faults.soak.run import soak

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("shards"),
    pytest.mark.skipif(not AVAILABLE, reason="what a process uses is read from /proc"),
]
#: The database more often than the others: each failed try must give back what it used.
FAULTS = (cut, half_close, lose_replies, delay, flush, kill_redis, refuse, *[lock_database] * 5)


@pytest.mark.parametrize(
    ("count", "seconds"), [pytest.param(20, 15, id="short"), pytest.param(60, 120, marks=pytest.mark.long, id="long")]
)
def test_f30_a_worker_does_not_grow(count, seconds, prefix, tmp_path, note_row):
    seed = random.randrange(10**6)
    print("seed", seed)
    with arena(tmp_path, workers=2, schedules=count, lease_seconds=2, seed=seed, elder_of=1) as place:
        outcome = soak(place, seconds, faults=FAULTS)
    row = outcome.rows()[-1]
    note_row(row.named("F30 soak", note="; ".join(map(str, outcome.growths))))
    assert len(outcome.growths) == 2
    assert outcome.complaints(timed=seconds >= 90) == []
