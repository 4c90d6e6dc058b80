"""F24: workers are killed, drained and stopped at random, and others are started in their place."""

import random
import time
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import transaction

from django_delayq.models import Run
from django_delayq.recurrence.point import utcnow
from tests.acceptance.support import lines, wait_until
from tests.app import tasks
from tests.faults.harness.database import gone
from tests.faults.harness.workers import LEASE, Fleet
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


@pytest.mark.parametrize(
    ("number", "rounds", "away"),
    [pytest.param(600, 3, 2, id="short"), pytest.param(10_000, 10, 20, marks=pytest.mark.long, id="long")],
)
def test_f24_each_job_has_one_outcome_whoever_is_killed_flushed_or_away(number, rounds, away, server, tmp_path):
    path, refused = tmp_path / "ran", tmp_path / "refused"
    with suppress(ZeroDivisionError), transaction.atomic():
        tasks.note.enqueue_many(((str(refused), "never"), {}) for _ in range(20))
        raise ZeroDivisionError
    begin, each = utcnow(), number // (2 * rounds)
    with Fleet(3, folder=tmp_path, LEASE_SECONDS=LEASE, MAX_RECLAIMS=100) as fleet:
        for part in range(2 * rounds):  # some wait, some are delayed, some run whenever a fault comes
            job = tasks.note.using(run_after=begin + timedelta(seconds=2.5 * part))
            job.enqueue_many(((str(path), f"{part}-{n}", 0.1), {}) for n in range(each))
        for turn in range(rounds):
            time.sleep(5)  # between two kills
            fleet.workers[turn % 3].kill()
            fleet.tend()
            if turn * 3 // rounds != (turn + 1) * 3 // rounds:
                server.flush()
            if turn == rounds // 2:
                with gone():
                    time.sleep(away)  # the outage
        wait_until(lambda: Run.objects.finished().count() == number, 300, "all jobs")
    assert set(Run.objects.values_list("status", "attempt")) == {("succeeded", 1)}
    assert Run.objects.count() == number == len({line[1] for line in lines(path) if line[0] == "end"})
    assert not refused.exists()
