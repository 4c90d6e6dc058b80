"""The attempts of a due point are kept: failures, what its workers did not end, and whatever closes it."""

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq import ledger, sync
from django_delayq.calls.attempt import NOT_ENDED
from django_delayq.index import Broker
from django_delayq.ledger import list_attempts
from django_delayq.models import Run, Schedule, Status
from django_delayq.recurrence import to_ms
from tests.integration import mirroring
from tests.integration.mirroring import idle_worker
from tests.support import DAY, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

BEGAN = datetime(2026, 5, 4, 12, tzinfo=UTC)


def schedule(task="noop", **values):
    return mirroring.schedule(task=f"tests.app.tasks.{task}", **values)


def running(broker, row, **values):
    """Insert the open row of a point that is due, as a worker leaves it."""
    known = {"status": Status.RUNNING, "fence": "old", "worker": "w-old", "claimed_at": BEGAN, "started_at": BEGAN}
    run = Run.build_for(row, make_due(broker, row), **{**known, **values})
    run.save()
    return run


def retrying(broker, row):
    failed = {"attempt": 1, "finished_at": BEGAN + timedelta(seconds=2), "error": "Traceback\nX: y", "reason": "X: y"}
    return running(broker, row, status=Status.RETRYING, **failed)


def claimed_by_the_dead(broker):
    """Have a worker claim what is due and die; return when that was."""
    dead = Broker(timeout_seconds=5, worker="dead")
    claim = dead.claim(dead.list_shards()[0], limit=10, lease_ms=0, request=1)
    dead.close()
    return claim.now_ms


def hand_back(worker):
    worker.dispatcher.release_waiting()
    worker.recorder.flush()
    worker.broker.close()


def kept(run):
    run.refresh_from_db()
    return list_attempts(run)


FORMER = (1, to_ms(BEGAN), to_ms(BEGAN) + 2000, "w-old", "X: y", "Traceback\nX: y")
LOST = (1, to_ms(BEGAN), None, "w-old", NOT_ENDED, "")


def test_a_point_that_succeeds_at_once_keeps_nothing_beside_its_row(broker):
    make_due(broker, schedule())
    run_burst()
    run = Run.objects.get()
    assert (run.attempts, len(list_attempts(run))) == (None, 1)
    assert list(Run.objects.filter(attempts__isnull=True)) == [run], "no value at all"


def test_each_attempt_of_a_point_is_kept_with_its_times_its_worker_and_its_traceback(broker, tmp_path):
    make_due(broker, schedule("flaky", args=[str(tmp_path / "f"), 2], max_attempts=5, backoff=timedelta(0)))
    run_burst(name="w-new")
    run = Run.objects.get()
    assert (run.status, run.attempt, run.error, len(run.attempts)) == (Status.SUCCEEDED, 3, "", 2)
    assert (run.result, run.schedule.state.run_count) == ("attempt 3", 1)
    found = list_attempts(run)
    assert [(each.number, each.title) for each in found] == [
        (1, "RuntimeError: attempt 1 fails"), (2, "RuntimeError: attempt 2 fails"), (3, ""),
    ]  # fmt: skip
    for each in found[:2]:
        assert "in flaky" in each.trace and each.title in each.trace
    assert {each.worker for each in found} == {run.worker} == {"w-new"}
    times = [time for each in found for time in (each.started, each.finished)]
    assert times == sorted(times)
    assert (found[-1].started, found[-1].finished) == (to_ms(run.started_at), to_ms(run.finished_at))


def test_a_point_that_fails_for_good_has_its_last_attempt_in_its_row(broker, tmp_path):
    make_due(broker, schedule("flaky", args=[str(tmp_path / "f"), 9], max_attempts=2, backoff=timedelta(0)))
    run_burst()
    run = Run.objects.get()
    assert (run.status, run.attempt, len(run.attempts)) == (Status.FAILED, 2, 1)
    assert (tmp_path / "f").read_text() == "xx"
    assert [each.title for each in list_attempts(run)] == [f"RuntimeError: attempt {n} fails" for n in (1, 2)]
    assert "attempt 2 fails" in run.error
    assert mirroring.view(broker, run.schedule).point_ms == to_ms(run.due_at + DAY), "its schedule goes on"


def test_secrets_are_hidden_in_the_attempts_that_are_kept(broker):
    row = schedule("fail", kwargs={"message": "password=hunter2hunter2"}, max_attempts=2, backoff=timedelta(0))
    make_due(broker, row)
    run_burst()
    (former,) = Run.objects.get().attempts
    assert "hunter2" not in f"{former}"
    assert "password=" in former["trace"]


def test_an_execution_that_did_not_end_is_kept_with_its_worker_and_its_start(broker):
    run = running(broker, schedule())
    run_burst()
    lost, last = kept(run)
    assert (tuple(lost), last.title, last.started > lost.started) == (LOST, "", True)


def test_a_take_over_of_a_retry_is_kept_behind_the_attempt_that_failed(broker):
    run = retrying(broker, schedule(max_attempts=3))
    worker = idle_worker()
    worker.tick()  # writes that it runs, and dies
    run.refresh_from_db()
    assert (run.status, run.error, run.reason, run.finished_at) == (Status.RUNNING, "", "", None)
    assert [tuple(each) for each in list_attempts(run)][:1] == [FORMER]
    assert list_attempts(run)[-1][2:] == (None, worker.options.name, "", ""), "it runs"
    worker.broker.close()
    mirroring.set_due(broker, run.schedule, "due", 1)
    run_burst()
    former, lost, last = kept(run)
    assert tuple(former) == FORMER
    assert (lost.number, lost.worker, lost.finished, lost.title) == (2, worker.options.name, None, NOT_ENDED)
    assert (last.number, last.title, run.status, run.reclaims) == (3, "", "succeeded", 1)


def test_of_a_worker_that_died_before_it_wrote_anything_its_claim_is_kept(broker):
    """Rules R2b and R6."""
    make_due(broker, schedule())
    claimed_ms = claimed_by_the_dead(broker)
    run_burst()
    run = Run.objects.get()
    lost, last = list_attempts(run)
    assert (run.status, run.reclaims) == (Status.SUCCEEDED, 1)
    assert (lost.worker, lost.finished, lost.title, last.title) == ("", None, NOT_ENDED, "")
    assert abs(lost.started - claimed_ms) <= 1


def test_poison_has_an_entry_for_its_last_execution_and_none_for_its_end(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RECLAIMS": 1}
    run = running(broker, schedule(), reclaims=1)
    run_burst()
    assert [tuple(each) for each in kept(run)] == [LOST]
    assert (run.status, run.reason) == (Status.LOST, "poison")
    assert mirroring.view(broker, run.schedule).point_ms == to_ms(run.due_at + DAY), "its schedule goes on"


@pytest.mark.parametrize("made", [retrying, running], ids=["retrying", "running"])
def test_what_is_handed_back_unstarted_keeps_no_attempt_of_it(broker, made):
    run = made(broker, schedule(max_attempts=3))
    names = ("status", "reclaims", "worker", "started_at", "finished_at", "reason", "error", "attempts", "attempt")
    before = {name: getattr(run, name) for name in names}
    for _ in range(3):
        worker = idle_worker()
        worker.tick()
        run.refresh_from_db()
        assert (run.status, len(run.attempts)) == (Status.RUNNING, 1)
        hand_back(worker)
        run.refresh_from_db()
        assert {name: getattr(run, name) for name in names} == before
    run_burst()
    assert [each.number for each in kept(run)] == [1, 2]


def test_what_was_inserted_and_handed_back_tells_of_the_one_who_died_not_of_the_one_who_handed_it_back(broker):
    make_due(broker, schedule())
    claimed_ms = claimed_by_the_dead(broker)
    worker = idle_worker()
    worker.tick()
    hand_back(worker)
    run = Run.objects.get()
    assert (run.status, run.reclaims, run.attempts, run.worker) == (Status.RUNNING, 0, None, "")
    run_burst()
    lost, last = kept(run)
    assert (lost.worker, abs(lost.started - claimed_ms) <= 1, last.title) == ("", True, "")


def closed_by_pause(broker, run):
    Schedule.objects.get().pause()
    sync.sweep_fully(broker)
    run_burst()


def closed_by_catch_up_window(broker, run):
    Schedule._base_manager.update(catch_up_window=timedelta(seconds=1))
    run_burst()


def closed_by_deletion(broker, run):
    ledger.close_orphan(run, "the schedule was deleted")


def closed_as_abandoned(broker, run):
    Schedule._base_manager.update(enabled=False)
    ledger.close_abandoned([Run.objects.get(pk=run.pk)])


@pytest.mark.parametrize(("made", "entry"), [(retrying, FORMER), (running, LOST)], ids=["retrying", "running"])
@pytest.mark.parametrize("close", [closed_by_pause, closed_by_catch_up_window, closed_by_deletion, closed_as_abandoned])
def test_whoever_closes_a_row_keeps_its_last_attempt_as_it_was(broker, made, entry, close):
    run = made(broker, schedule(max_attempts=3))
    close(broker, run)
    assert [tuple(each) for each in kept(run)] == [entry]
    assert run.status in (Status.FAILED, Status.LOST)


def test_a_point_that_was_never_executed_has_no_attempts(broker):
    row = schedule()
    point = make_due(broker, row)
    for number, status in enumerate((Status.SKIPPED, Status.QUEUED)):
        run = Run.build_for(row, point + timedelta(seconds=number), status=status, started_at=None)
        assert list_attempts(run) == []
        ledger.keep_former(run)
        assert run.attempts is None
