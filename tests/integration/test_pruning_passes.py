"""Pruning by the workers: when it is due, how it stops and continues, and what is told of it."""

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_delayq import ledger
from django_delayq.index import Broker
from django_delayq.ledger import retention as batches
from django_delayq.models import Run, ScheduleState
from django_delayq.monitoring.problems import get_exit_status
from django_delayq.sync import pruning
from django_delayq.worker import upkeep
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import PATIENCE_SECONDS
from tests.integration.histories import history, left, run, schedule
from tests.integration.mirroring import look
from tests.integration.probing import ask, well
from tests.support import DAY, hold_upkeep

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["well"]


@pytest.fixture(autouse=True)
def thirty_days(settings):
    settings.DELAYQ = {**settings.DELAYQ, "HISTORY_DAYS": 30}


@pytest.fixture
def old(monkeypatch):
    """Five schedules with ten old runs each, of which ten go in a batch."""
    monkeypatch.setattr(batches, "PRUNE_BATCH", 10)
    owners = [schedule(f"s{number}") for number in range(5)]
    for owner in owners:
        history(owner, *range(40, 50), 1)
    return owners


def change_note(broker, **values):
    broker.write_note("pruned", json.dumps({**json.loads(broker.read_note("pruned")), **values}))


def test_a_pass_is_noted_and_none_is_due_for_an_hour(broker, old):
    began = broker.read_now_ms()
    done = pruning.prune_if_due(broker)
    assert (done.rows, done.left, done.finished) == (50, 0, True)
    assert done.behind_seconds // DAY.total_seconds() == 18  # 49 days old, less a minute
    assert pruning.read_last(broker) == done
    assert began <= done.at_ms <= broker.read_now_ms()
    run(old[0], 60)
    assert pruning.prune_if_due(broker) is None
    assert left(old[0]) == [60, 1]
    change_note(broker, at_ms=broker.read_now_ms() - 3_600_000)
    again = pruning.prune_if_due(broker)
    assert (again.rows, again.finished) == (1, True), "each pass counts for itself"


DUE = [
    ("flushed", lambda b: b.ask("delete", f"{b.config.prefix}:pruned")),
    ("an hour ago", lambda b: change_note(b, at_ms=b.read_now_ms() - 3_600_000)),
    ("the server's clock stepped back", lambda b: change_note(b, at_ms=b.read_now_ms() + 60_000)),
    ("unfinished", lambda b: change_note(b, after=0)),
    ("another database", lambda b: change_note(b, database="another")),
    ("a garbage time", lambda b: change_note(b, at_ms=10**30)),
    ("a list where it is a number", lambda b: change_note(b, rows=[])),
    *(
        (f"garbage {value!r}", lambda b, value=value: b.write_note("pruned", value))
        for value in ("", "x", "[]", "null")
    ),
    ("deep", lambda b: b.write_note("pruned", "[" * 50_000)),
]


@pytest.mark.parametrize("change", [row[1] for row in DUE], ids=[row[0] for row in DUE])
def test_a_pass_is_due(broker, old, change):
    pruning.prune_if_due(broker)
    run(old[0], 60)
    change(broker)
    assert pruning.prune_if_due(broker).rows >= 1
    assert left(old[0]) == [1]
    assert pruning.prune_if_due(broker) is None


def test_a_pass_that_is_stopped_is_continued_where_it_stopped_by_whoever_is_next(broker, old, settings):
    done = pruning.prune_if_due(broker, go_on=lambda: False)
    assert (done.rows, done.finished) == (10, False)
    assert Run.objects.count() == 45
    run(old[0], 60)
    other = Broker(timeout_seconds=5, worker="other")
    assert pruning.prune_if_due(other, go_on=lambda: False).rows == 20
    last = pruning.prune_if_due(other)
    assert (last.rows, last.finished) == (50, True), "it counts all of the pass"
    assert left(old[0]) == [60, 1], "which was behind it, and comes with the next"
    other.close()


def test_a_pass_stops_after_its_time_and_goes_on_at_once(broker, old):
    assert pruning.prune_if_due(broker, seconds=0).rows == 10
    rounds = 1
    while not pruning.prune_if_due(broker, seconds=0).finished:
        rounds += 1
    assert rounds == 4
    assert Run.objects.count() == 5


@pytest.fixture
def worker():
    made = Worker(WorkerOptions(queues=("default",), burst=True))
    yield made
    made.broker.close()


def test_a_worker_prunes_with_its_looks_and_looks_again_at_once_where_there_is_more(worker, old, monkeypatch):
    worker.upkeep._prepare(burst=False)
    monkeypatch.setattr(upkeep.Upkeep._prune, "__defaults__", (0,))
    for number in range(4):
        look(worker) if number == 0 else worker.upkeep.run_round()
        assert worker.upkeep._due["beat"] == 0.0
    for _ in range(3):
        worker.upkeep.run_round()
    assert Run.objects.count() == 5
    assert worker.upkeep._due["beat"] > 0


def test_a_worker_in_burst_mode_prunes_too(worker, old, monkeypatch):
    monkeypatch.setattr("django_delayq.worker.upkeep.BURST_PRUNE_SECONDS", PATIENCE_SECONDS)
    worker.run()
    assert Run.objects.count() == 5


def test_between_batches_a_worker_sweeps_beats_and_hears_of_a_flush_of_its_end_and_of_the_lease_it_lost(
    worker, old, monkeypatch
):
    worker.upkeep._prepare(burst=False)
    seen = []
    monkeypatch.setattr(worker.upkeep, "_do_small_chores", lambda: seen.append(Run.objects.count()))
    worker.upkeep._prune()
    assert seen[:4] == [45, 35, 25, 15]
    for owner in old:
        history(owner, *range(60, 70))
    change_note(worker.broker, after=0)
    for rows, event in ((45, worker.upkeep._rebuild), (35, worker.upkeep._stop)):
        event.set()
        worker.upkeep._prune()
        assert Run.objects.count() == rows, "it ends after the batch that it was at"
        event.clear()
    hold_upkeep(worker.broker)
    worker.upkeep._prune()
    assert (Run.objects.count(), worker.upkeep.holds) == (25, False)


def test_a_database_that_refuses_is_told_and_holds_up_nothing(worker, old, monkeypatch, caplog):
    worker.upkeep._prepare(burst=False)

    def refuse(rows):
        raise OperationalError("canceling statement due to lock timeout")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "prune", refuse)
        look(worker)
    assert "The history could not be pruned: canceling statement" in caplog.text
    assert not worker.upkeep._backoff.until
    look(worker)
    assert Run.objects.count() == 5


def test_the_status_tells_of_the_last_pass(well, old):
    assert ask()[1]["pruned"] is None
    pruning.prune_if_due(well, go_on=lambda: False)
    assert ask()[1]["pruned"]["finished"] is False
    pruning.prune_if_due(well)
    found = ask()[1]["pruned"]
    assert set(found) == {"at", "rows", "left", "behind_seconds", "finished"}
    assert (found["rows"], found["left"], found["finished"]) == (50, 0, True)
    assert found["behind_seconds"] // 86_400 == 18
    change_note(well, left=3)
    assert ask()[1]["pruned"]["left"] == 3
    assert get_exit_status([]) == 0


def command(**options):
    out, err = io.StringIO(), io.StringIO()
    call_command("delayq_prune", stdout=out, stderr=err, **options)
    return out.getvalue().splitlines(), err.getvalue()


def test_the_command_says_what_would_go_and_then_what_went(old):
    history(old[0], 70, 71, status="failed", task="tests.app.tasks.fail")
    expected = ["          2 failed     tests.app.tasks.fail", "         50 succeeded  tests.app.tasks.noop"]
    ScheduleState.objects.filter(pk=old[4].pk).update(last_due_at=None)
    expected[1] = expected[1].replace("50", "40")
    assert command(dry_run=True) == ([*expected, "42 runs would be deleted."], "")
    assert Run.objects.count() == 57
    assert command() == ([*expected, "42 runs were deleted."], "")
    assert Run.objects.count() == 15
    assert command() == (["0 runs were deleted."], "")


def test_the_command_can_be_interrupted(old, monkeypatch):
    out, real = io.StringIO(), ledger.prune

    def interrupted(rows):
        if Run.objects.count() < 40:
            raise KeyboardInterrupt
        return real(rows)

    monkeypatch.setattr(ledger, "prune", interrupted)
    with pytest.raises(CommandError, match="run this again") as caught:
        call_command("delayq_prune", stdout=out)
    assert caught.value.returncode == 130
    assert "20 runs were deleted." in out.getvalue()
    assert Run.objects.count() == 35


def test_the_command_tells_programs_what_went(old):
    out = io.StringIO()
    call_command("delayq_prune", "--json", stdout=out)
    told = json.loads(out.getvalue())
    assert told["deleted"] == 50
    assert told["by"] == [{"task": "tests.app.tasks.noop", "status": "succeeded", "runs": 50}]


def test_the_command_fails_with_one_line(monkeypatch):
    def refuse(rows):
        raise OperationalError("database is locked")

    monkeypatch.setattr(ledger, "prune", refuse)
    with pytest.raises(CommandError, match="database is locked") as caught:
        command()
    assert caught.value.returncode == 1
