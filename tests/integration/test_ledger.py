"""The ledger: who wins a due point, and what the state says afterwards. Redis plays no part here."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from django_delayq import ledger
from django_delayq.ledger import Outcome, Won, get_version, recording
from django_delayq.models import Condition, Origin, Run, Schedule, ScheduleState, Status

pytestmark = pytest.mark.django_db

T = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)


def schedule(name="s", **values):
    """A schedule that fires at every full hour from 11:30 on, stored as if it had been made then."""
    row = Schedule(name=name, task="tests.app.tasks.noop", kind="cron", cron="0 * * * *", **values)
    row.created_at = row.effective_from = T - HOUR / 2
    Schedule._base_manager.bulk_create([row])
    return Schedule._base_manager.get(name=name)


def row_of(owner, due_at=T, status=Status.SUCCEEDED, fence="1.e", worker="w1", **values):
    times = {"claimed_at": due_at + SECOND, "started_at": due_at + SECOND, "finished_at": due_at + 3 * SECOND}
    if status in (Status.SKIPPED, Status.QUEUED):
        times["started_at"] = None
    known = {"schedule_id": owner.pk, "schedule_name": owner.name, "task": owner.task, "queue": owner.queue}
    known |= {"generation": owner.generation, "due_at": due_at, "status": status, "fence": fence, "worker": worker}
    return Run(**{**known, **times, **values})


def record(owner, *args, seen=None, **values):
    return ledger.record([Outcome(row_of(owner, *args, **values), owner, seen)])[0]


def state_of(owner):
    return ScheduleState.objects.get(pk=owner.pk)


def rows():
    return list(Run.objects.order_by("due_at").values_list("due_at", "status", "fence"))


# -- who wins


def test_a_batch_is_one_insert_whatever_its_size():
    owners = [schedule(f"s{n}") for n in range(20)]
    with CaptureQueriesContext(connection) as queries:
        won = ledger.record([Outcome(row_of(owner), owner) for owner in owners])
    assert won == [Won.YES] * 20
    assert Run.objects.count() == ScheduleState.objects.filter(run_count=1).count() == 20
    inserts = [query["sql"] for query in queries if "INSERT INTO" in query["sql"]]
    assert len(inserts) == 2
    assert len(queries) <= 10


def test_the_first_of_two_outcomes_of_one_begun_row_in_a_batch_stands():
    owner = schedule()
    run = row_of(owner, status=Status.RUNNING, fence="1.e")
    run.save()
    outcomes = [Outcome(row_of(owner, pk=run.pk, fence=fence), owner, get_version(run)) for fence in ("2.e", "3.e")]
    assert ledger.record(outcomes) == [Won.YES, Won.LOST]
    assert (state_of(owner).run_count, Run.objects.get().fence) == (1, "2.e")


def test_one_taken_point_does_not_cost_the_others_of_its_batch():
    owners = [schedule(f"s{n}") for n in range(3)]
    row_of(owners[1], fence="9.e", worker="other", status=Status.RUNNING).save()
    outcomes = [Outcome(row_of(owner), owner) for owner in owners]
    assert ledger.record(outcomes) == [Won.YES, Won.LOST, Won.YES]
    assert sorted(Run.objects.values_list("status", "worker")) == [
        ("running", "other"), ("succeeded", "w1"), ("succeeded", "w1"),
    ]  # fmt: skip
    assert [owner.pk for owner in owners if not ScheduleState.objects.filter(pk=owner.pk).exists()] == [owners[1].pk]
    assert [outcome.next_point for outcome in outcomes] == [T + HOUR, None, T + HOUR]


def test_the_database_itself_refuses_a_second_row_of_a_point():
    owner = schedule()
    row_of(owner).save()
    with pytest.raises(IntegrityError):
        row_of(owner, status=Status.SKIPPED).save()


def test_a_run_now_at_the_same_instant_is_another_point():
    owner = schedule()
    assert record(owner) is Won.YES
    assert record(owner, origin=Origin.MANUAL, separate=True) is Won.YES


OTHERS = [
    ("another fence", {"fence": "2.e"}),
    ("another worker", {"worker": "w2"}),
    ("another status", {"status": Status.FAILED}),
    ("another attempt", {"attempt": 1}),
    ("no fence on either", {"fence": ""}),
]


@pytest.mark.parametrize("there", [row[1] for row in OTHERS], ids=[row[0] for row in OTHERS])
def test_a_row_that_is_not_mine_is_lost_and_nothing_changes(there):
    owner = schedule()
    row_of(owner, **there).save()
    before = list(Run.objects.values())
    assert record(owner, fence=there["fence"] if there.get("fence") == "" else "1.e") is Won.LOST
    assert list(Run.objects.values()) == before
    assert not ScheduleState.objects.exists()


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.FAILED, Status.SKIPPED, Status.LOST, Status.RETRYING])
@pytest.mark.parametrize("separate", [False, True])
def test_a_lost_commit_reply_is_recognised_and_counts_once(status, separate):
    """The COMMIT arrived, its reply did not: the same call is made again."""
    owner = schedule()
    outcome = Outcome(row_of(owner, status=status, separate=separate), owner)
    assert ledger.record([outcome]) == [Won.YES]
    before = ScheduleState.objects.values().get(pk=owner.pk)
    following = outcome.next_point
    assert ledger.record([outcome]) == [Won.YES]
    assert ScheduleState.objects.values().get(pk=owner.pk) == before
    assert outcome.next_point == following
    assert Run.objects.count() == 1


def test_a_lost_commit_reply_of_an_update_counts_once():
    owner = schedule()
    run = row_of(owner, status=Status.RUNNING)
    run.save()
    outcome = Outcome(row_of(owner, pk=run.pk, created_at=run.created_at), owner, get_version(run))
    assert [ledger.record([outcome]), ledger.record([outcome])] == [[Won.YES], [Won.YES]]
    assert state_of(owner).run_count == 1


def test_after_an_exception_nothing_is_written_and_the_call_may_be_repeated(monkeypatch):
    owner = schedule()
    outcome = Outcome(row_of(owner), owner)
    real = recording._advance

    def fail(*args):
        real(*args)
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(recording, "_advance", fail)
    with pytest.raises(RuntimeError):
        ledger.record([outcome])
    assert not Run.objects.exists()
    assert not ScheduleState.objects.exists()
    monkeypatch.setattr(recording, "_advance", real)
    assert ledger.record([outcome]) == [Won.YES]
    assert state_of(owner).run_count == 1


# -- compare and set


@pytest.mark.parametrize("change", [{"status": Status.RETRYING}, {"attempt": 2}, {"fence": "0.e"}, {"fence": "9.e"}])
def test_an_update_names_status_attempt_and_fence_as_they_were_read(change):
    owner = schedule()
    run = row_of(owner, status=Status.RUNNING, attempt=1, fence="5.e", worker="other")
    run.save()
    seen = get_version(run)
    Run.objects.update(**change)
    before = list(Run.objects.values())
    assert record(owner, pk=run.pk, seen=seen, fence="7.e") is Won.LOST
    assert list(Run.objects.values()) == before
    assert not ScheduleState.objects.exists()


def test_an_update_of_what_was_read_wins_also_with_a_smaller_fence():
    owner = schedule()
    run = row_of(owner, status=Status.RUNNING, fence="9.e", worker="other")
    run.save()
    assert record(owner, pk=run.pk, seen=get_version(run), fence="1.f") is Won.YES
    assert rows() == [(T, "succeeded", "1.f")]


def test_start_writes_rows_and_leaves_states_alone():
    owner, other = schedule("a"), schedule("b")
    waiting = row_of(other, status=Status.RETRYING, attempt=1)
    waiting.save()
    again = row_of(other, pk=waiting.pk, status=Status.RUNNING, attempt=1, fence="2.e")
    fresh = Outcome(row_of(owner, status=Status.RUNNING), owner)
    assert ledger.start([fresh, Outcome(again, other, get_version(waiting))]) == [Won.YES, Won.YES]
    assert sorted(rows()) == [(T, "running", "1.e"), (T, "running", "2.e")]
    assert not ScheduleState.objects.exists()
    assert ledger.start([fresh]) == [Won.YES], "a lost COMMIT reply"
    assert ledger.start([Outcome(row_of(owner, status=Status.RUNNING, fence="3.e"), owner)]) == [Won.LOST]


# -- deletion


def test_the_outcome_of_a_deleted_schedule_is_gone_and_its_neighbour_stays():
    owner, other = schedule("a"), schedule("b")
    Schedule._base_manager.filter(pk=owner.pk)._raw_delete("default")
    assert ledger.record([Outcome(row_of(owner), owner), Outcome(row_of(other), other)]) == [Won.GONE, Won.YES]
    assert list(Run.objects.values_list("schedule_name", flat=True)) == ["b"]


def test_the_outcome_of_another_incarnation_is_gone():
    owner = schedule()
    Schedule._base_manager.filter(pk=owner.pk).update(created_at=T - HOUR / 3, generation=owner.generation + 1)
    assert record(owner) is Won.GONE
    assert not Run.objects.exists()
    assert not ScheduleState.objects.filter(run_count__gt=0).exists()


def test_an_edit_during_a_run_decides_the_next_point():
    owner = schedule()
    Schedule.objects.filter(pk=owner.pk).update(cron="15 * * * *")
    Schedule._base_manager.filter(pk=owner.pk).update(effective_from=T + SECOND)
    outcome = Outcome(row_of(owner), owner)
    assert ledger.record([outcome]) == [Won.YES]
    assert outcome.schedule.cron == "15 * * * *"
    assert outcome.next_point == T + timedelta(minutes=15)


def test_an_orphan_is_closed_once():
    owner = schedule()
    run = row_of(owner, status=Status.RETRYING)
    run.save()
    ledger.close_orphan(run, "the schedule was deleted")
    assert Run.objects.values_list("status", "reason").get() == ("lost", "the schedule was deleted")
    Run.objects.update(status=Status.SUCCEEDED)
    ledger.close_orphan(run, "again")
    assert Run.objects.get().status == Status.SUCCEEDED


# -- the state

NOTHING = {"last_due_at": None, "run_count": 0, "failing_streak": 0, "last_status": "", "busy_from": None}
RAN = {"last_due_at": T, "last_latency_ms": 1000, "last_finished_at": T + 3 * SECOND, "busy_from": T + SECOND}
STATES = [
    ("succeeded", {}, {**RAN, "run_count": 1, "failing_streak": 0, "last_status": "succeeded"}),
    ("failed", {"status": "failed"}, {**RAN, "run_count": 1, "failing_streak": 1, "last_status": "failed"}),
    ("lost", {"status": "lost"}, {**RAN, "run_count": 1, "failing_streak": 1, "last_status": "lost"}),
    ("skipped", {"status": "skipped"}, {**NOTHING, "last_due_at": T, "last_status": "skipped"}),
    ("a skipped stretch", {"status": "skipped", "last_due_at": T + HOUR, "points": 2},
     {**NOTHING, "last_due_at": T + HOUR, "last_status": "skipped"}),
    ("retrying", {"status": "retrying"}, NOTHING),
    ("handed over", {"status": "queued", "separate": True, "fence": "", "worker": ""},
     {**NOTHING, "last_due_at": T, "run_count": 1}),
    ("ran beside the chain", {"separate": True}, {**RAN, "last_due_at": None, "run_count": 0}),
    ("run now", {"separate": True, "origin": "manual"},
     {**NOTHING, "last_status": "succeeded", "last_latency_ms": 1000}),
    ("run now failed", {"separate": True, "origin": "manual", "status": "failed"},
     {**NOTHING, "last_status": "failed", "failing_streak": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("values", "after"), [row[1:] for row in STATES], ids=[row[0] for row in STATES])
def test_a_row_moves_the_state_on(values, after):
    owner = schedule()
    assert record(owner, **values) is Won.YES
    found = ScheduleState.objects.values().get(pk=owner.pk)
    assert {name: found[name] for name in after} == after


def test_the_streak_of_failures_ends_with_a_success():
    owner, streaks = schedule(), []
    for hour, status in enumerate(["failed", "lost", "skipped", "failed", "succeeded", "failed"]):
        assert record(owner, T + hour * HOUR, status=status) is Won.YES
        streaks.append(state_of(owner).failing_streak)
    assert streaks == [1, 2, 2, 3, 0, 1]
    assert state_of(owner).run_count == 5


def test_the_last_due_point_never_moves_back():
    owner = schedule()
    record(owner, T + 5 * HOUR)
    record(owner, T, status=Status.SKIPPED)
    record(owner, T + HOUR, separate=True, status=Status.QUEUED, fence="")
    assert state_of(owner).last_due_at == T + 5 * HOUR
    assert state_of(owner).next_due_at == T + 6 * HOUR


def test_the_busy_stretch_goes_on_while_points_come_due_inside_it():
    owner = schedule()
    record(owner, T, finished_at=T + 3 * HOUR)
    assert state_of(owner).busy_from == T + SECOND
    record(owner, T + HOUR, claimed_at=T + 3 * HOUR, started_at=T + 3 * HOUR, finished_at=T + 4 * HOUR)
    assert (state_of(owner).busy_from, state_of(owner).last_finished_at) == (T + SECOND, T + 4 * HOUR)
    record(owner, T + 5 * HOUR)
    assert state_of(owner).busy_from == T + 5 * HOUR + SECOND


def test_two_points_of_one_schedule_in_one_batch():
    owner = schedule()
    outcomes = [Outcome(row_of(owner, T + n * HOUR), owner) for n in range(3)]
    assert ledger.record(outcomes) == [Won.YES] * 3
    assert state_of(owner).run_count == 3
    assert outcomes[-1].next_point == T + 3 * HOUR


FINISHED = [
    ("max_runs", {"max_runs": 1}, "It has run 1 times"),
    ("end_at", {"end_at": T + HOUR / 2}, "no due point left before its end"),
]


@pytest.mark.parametrize(("values", "reason"), [row[1:] for row in FINISHED], ids=[row[0] for row in FINISHED])
def test_the_last_point_exhausts_the_schedule(values, reason):
    owner = schedule(**values)
    outcome = Outcome(row_of(owner), owner)
    ledger.record([outcome])
    assert outcome.next_point is None
    state = state_of(owner)
    assert (state.condition, state.next_due_at) == (Condition.FINISHED, None)
    assert reason in state.condition_reason
    owner.refresh_from_db()
    assert owner.enabled, "the row that people edit is not touched"


def test_a_next_point_that_cannot_be_computed_parks_and_the_outcome_stands():
    owner = schedule()
    Schedule._base_manager.update(timezone="Mars/Olympus", generation=owner.generation + 1)
    assert record(owner) is Won.YES
    state = state_of(owner)
    assert (state.condition, state.next_due_at, state.last_due_at) == (Condition.BROKEN, None, T)
    assert "Mars/Olympus" in state.condition_reason
    Schedule._base_manager.update(timezone="UTC", generation=owner.generation + 2)
    record(owner, T + HOUR)
    assert (state_of(owner).condition, state_of(owner).condition_reason) == (Condition.ACTIVE, "")


def test_a_disabled_schedule_has_no_next_point():
    owner = schedule(enabled=False)
    outcome = Outcome(row_of(owner), owner)
    assert (ledger.record([outcome]), outcome.next_point) == ([Won.YES], None)
    assert (state_of(owner).next_due_at, state_of(owner).condition) == (None, Condition.ACTIVE)


def test_open_rows_are_those_of_the_chain_oldest_first():
    owner, other = schedule("a"), schedule("b")
    for hour, status in enumerate(["retrying", "succeeded", "running", "queued", "lost"]):
        row_of(owner, T + (9 - hour) * HOUR, status=status).save()
    row_of(owner, T, status="running", separate=True).save()
    found = ledger.load_open_rows([owner.pk, other.pk])
    assert {pk: [run.status for run in runs] for pk, runs in found.items()} == {owner.pk: ["running", "retrying"]}


def test_a_row_without_a_state_becomes_a_schedule_without_one():
    owner = schedule()
    [row] = ledger.load_schedules([owner.pk]).values()
    made = ledger.build_schedule(row)
    assert (made.pk, made.name, made.cron) == (owner.pk, owner.name, owner.cron)
    with pytest.raises(ScheduleState.DoesNotExist):
        made.state  # noqa: B018 - reading it is the point
