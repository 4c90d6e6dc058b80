"""Pauses and limits: what the scripts hold to, what a worker heeds, and who may say so."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError
from django.db import OperationalError

from django_delayq import actions, ledger
from django_delayq.index import EntryDefinition
from django_delayq.management.commands.delayq_status import build_dict, format_lines
from django_delayq.models import Control, Origin, Run, Schedule
from django_delayq.monitoring import explain
from django_delayq.monitoring.observing import take_snapshot
from django_delayq.recurrence.point import utcnow
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.app import tasks
from tests.integration.admin_pages import client_for, text_of
from tests.integration.mirroring import schedule, view
from tests.integration.probing import beat
from tests.integration.shard import PLACE
from tests.support import DAY, make_due, run_burst, said

pytestmark = pytest.mark.django_db(transaction=True)


# -- the limit of a shard


def claim(shard, request, most, *, limit=10, lease_ms=30_000):
    claimed = shard.broker.claim(PLACE, limit=limit, lease_ms=lease_ms, request=request, most=most)
    return [entry.member for entry in claimed.entries]


def test_no_more_points_are_leased_than_may_stand(shard):
    for number in range(6):
        shard.member(f"s{number}", due=-1000 + number)
    for _ in range(2):
        assert claim(shard, 1, 4) == ["s0", "s1", "s2", "s3"], "a repeated request too, as its reply may be lost"
    for _ in range(2):
        assert claim(shard, 2, 4) == [], "a repeated request too"
    assert claim(shard, 3, 5) == ["s4"]
    assert claim(shard, 4, 0) == []
    assert claim(shard, 5, None) == ["s5"]


def test_a_lease_that_ran_out_does_not_count(shard):
    for number in range(6):
        shard.member(f"s{number}", due=-1000 + number)
    assert len(claim(shard, 1, 3, lease_ms=1)) == 3
    ended = shard.broker.read_now_ms() + 1
    while shard.broker.read_now_ms() <= ended:
        pass
    assert len(claim(shard, 2, 3)) == 3
    assert claim(shard, 3, 3) == []


def test_what_was_handed_back_after_a_lapse_does_not_count_while_it_waits(shard):
    shard.member("s1", due=60_000, lease="-")
    shard.member("s2")
    assert claim(shard, 1, 1) == ["s2"]


def test_points_and_jobs_of_a_shard_have_one_limit(shard):
    jobs = [EntryDefinition(f"j{number}", 7, shard.now - 1000 + number, 0) for number in range(1, 4)]
    shard.broker.upsert(PLACE, jobs, mode="new")
    shard.member("s1")
    shard.member("s2")
    assert sorted(claim(shard, 1, 3)) == ["j1", "s1", "s2"]
    assert claim(shard, 2, 3) == []
    assert claim(shard, 3, 4) == ["j2"]


# -- a worker


def leased(broker):
    """Return the schedules of which a worker holds the point."""
    return [row for row in Schedule.objects.all() if view(broker, row).leased]


def statuses():
    """Return (name, status) of the runs of schedules."""
    return sorted(Run.objects.exclude(origin=Origin.JOB).values_list("schedule_name", "status"))


def test_nothing_of_a_paused_queue_runs_and_afterwards_everything(broker):
    make_due(broker, schedule(queue="mail"))
    make_due(broker, schedule("other"))
    actions.pause("mail", reason="the provider is down")
    result = tasks.noop.using(queue_name="mail").enqueue()
    run_burst()
    assert statuses() == [("other", "succeeded")]
    result.refresh()
    assert not result.is_finished
    actions.resume("mail")
    run_burst()
    assert statuses() == [("other", "succeeded"), ("s", "succeeded")]
    result.refresh()
    assert result.is_finished


def test_what_was_late_by_the_end_of_a_pause_follows_missed(broker):
    row = schedule(missed="skip", grace=timedelta(minutes=5))
    actions.pause("default")
    make_due(broker, row, timedelta(0))
    run_burst()
    assert statuses() == []
    actions.resume("default")
    run_burst()
    assert statuses() == [("s", "skipped")]


def test_a_pause_ends_by_itself(broker):
    make_due(broker, schedule())
    row = actions.pause("default", until=utcnow() + timedelta(hours=1))
    run_burst()
    assert statuses() == []
    Control.objects.filter(pk=row.pk).update(until=utcnow())
    run_burst()
    assert statuses() == [("s", "succeeded")]


def test_entries_of_a_paused_task_wait_and_the_others_of_the_queue_run(broker):
    row = schedule()
    make_due(broker, row)
    make_due(broker, schedule("adds", task="tests.app.tasks.add", kwargs={"a": 1}))
    held = tasks.noop.enqueue()
    actions.pause(task="tests.app.tasks.noop")
    run_burst()
    assert statuses() == [("adds", "succeeded")]
    held.refresh()
    assert not held.is_finished
    entry = view(broker, row)
    assert not entry.leased
    assert entry.score_ms > broker.read_now_ms()


def test_what_waits_for_a_slot_is_handed_back_when_its_queue_is_paused(broker):
    for number in range(6):
        make_due(broker, schedule(f"s{number}"))
    worker = Worker(WorkerOptions(queues=("default",), threads=1))
    worker.slots.get_capacity = lambda: 6 - worker.slots.waiting  # its threads have not started: all of it waits
    worker.run_round()
    assert worker.slots.waiting == 6
    actions.pause("default")
    worker.controls._read_at = 0.0  # it was half a second ago
    worker.run_round()
    assert worker.slots.waiting == 0
    assert not leased(broker)


def test_what_waits_to_run_alone_is_handed_back_when_its_queue_is_paused(broker):
    make_due(broker, schedule())
    worker = Worker(WorkerOptions(queues=("default",), threads=1))
    worker.run_round()
    (held,) = worker.slots.take_back()
    worker.dispatcher.isolation.add(held)
    worker.timers.put_off(held.shard, 60)  # nothing is about to be claimed
    actions.pause("default")
    worker.controls._read_at = 0.0
    worker.run_round()
    assert not worker.dispatcher.isolation.waiting
    assert not worker.slots.waiting
    assert not leased(broker)


def test_a_reply_that_is_missing_elsewhere_lets_nothing_of_a_paused_queue_start(broker):
    make_due(broker, schedule(queue="mail"))
    actions.pause("mail")
    worker = Worker(WorkerOptions(queues=("default", "mail"), threads=2))
    (here,) = [shard for shard in worker.shards if shard.queue == "default"]
    worker.claims.unanswered.add(here)
    worker.timers.put_off(here, 60)
    worker.run_round()
    assert worker.slots.waiting == 0


def test_what_a_lost_reply_had_of_a_paused_queue_is_handed_back(broker):
    make_due(broker, schedule(queue="mail"))
    worker = Worker(WorkerOptions(queues=("mail",), threads=2))
    (shard,) = worker.shards
    lost = worker.broker.claim(shard, limit=5, lease_ms=30_000, request=1)
    assert len(lost.entries) == 1
    worker.claims._request[shard] = 1
    worker.claims.unanswered.add(shard)
    actions.pause("mail")
    worker.run_round()
    assert worker.slots.waiting == 0
    assert not leased(broker)


def test_a_limited_queue_runs_no_more_at_a_time_and_all_in_the_end(broker):
    for number in range(9):
        make_due(broker, schedule(f"s{number}"))
    actions.limit("default", 2)
    worker = Worker(WorkerOptions(queues=("default",), threads=8))
    worker.slots.start()
    seen = 0
    for _ in range(2000):
        worker.run_round(0.005)
        seen = max(seen, len(worker.keeper))
        if Run.objects.filter(status="succeeded").count() == 9:
            break
    worker.slots.stop(1)
    assert statuses() == [(f"s{number}", "succeeded") for number in range(9)]
    assert seen == 2


def test_a_limit_is_divided_among_shards(broker, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": {"default": 4, "mail": 1}}
    actions.limit("default", 9)
    worker = Worker(WorkerOptions(queues=("default", "mail")))
    worker.controls.refresh()
    assert {worker.controls.get_most(shard) for shard in worker.shards if shard.queue == "default"} == {2}
    assert {worker.controls.get_most(shard) for shard in worker.shards if shard.queue == "mail"} == {None}
    actions.limit("default", 1)
    worker.controls._read_at = 0.0
    worker.controls.refresh()
    assert {worker.controls.get_most(shard) for shard in worker.shards if shard.queue == "default"} == {1}


def test_while_the_database_is_away_what_was_known_last_holds(broker, caplog, monkeypatch):
    actions.pause("mail")
    worker = Worker(WorkerOptions(queues=("mail",)))
    assert worker.controls.refresh()

    def away():
        raise OperationalError("gone")

    monkeypatch.setattr(ledger, "read_held_back", away)
    worker.controls._read_at = 0.0
    assert not worker.controls.refresh()
    assert "mail" in worker.controls.known.queues
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        "Pauses and limits cannot be read; the last known ones apply. gone"
    ]


# -- who says so


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: actions.pause("emial"), "Queue emial does not exist. The queues are default, mail."),
        (lambda: actions.pause(task="tests.app.tasks.nope"), "No installed app has a @task function"),
        (lambda: actions.pause("mail", until=utcnow() - DAY), "This time is in the past."),
        (lambda: actions.limit("mail", -1), "Ensure this value is greater than or equal to 0."),
    ],
)
def test_what_would_hold_nothing_back_is_refused(call, message):
    with pytest.raises(ValidationError) as caught:
        call()
    assert message in " ".join(caught.value.messages)
    assert not Control.objects.exists()


def test_neither_both_nor_none_can_be_named():
    for call in (lambda: actions.pause(), lambda: actions.pause("mail", task="tests.app.tasks.noop")):
        with pytest.raises(TypeError, match="Name a queue or a task"):
            call()


def test_a_limit_outlives_a_pause_and_is_one_row():
    actions.limit("mail", 3, by="ann")
    actions.pause("mail", reason="full disk", by="bob")
    assert Control.objects.get().restrictions == "paused (full disk) by bob, 3 at a time"
    actions.resume("mail", by="ann")
    assert Control.objects.get().restrictions == "3 at a time"


def command(*words):
    return said("delayq_control", *words)


def test_the_command_pauses_limits_resumes_and_lists():
    assert command() == "Nothing is held back.\n"
    assert "queue mail: paused (full disk" in command("pause", "mail", "--reason", "full disk")
    assert "task tests.app.tasks.noop: paused" in command("pause", "--task", "tests.app.tasks.noop")
    assert "5 at a time" in command("limit", "default", "5")
    assert len(command().splitlines()) == 3
    assert command("resume", "mail") == "queue mail: nothing is held back.\n"
    assert command("limit", "default", "none") == "queue default: nothing is held back.\n"
    with pytest.raises(CommandError, match="write a whole number, or none"):
        command("limit", "default", "many")
    with pytest.raises(CommandError, match="Queue emial does not exist"):
        command("pause", "emial")
    with pytest.raises(CommandError, match="is not a time"):
        command("pause", "mail", "--until", "tomorrow")


def test_status_and_explanation_tell_what_is_held_back(broker):
    row = schedule(queue="mail")
    make_due(broker, row, timedelta(hours=2))
    beat(broker)
    actions.pause("mail", reason="full disk", by="bob")
    snapshot = take_snapshot()
    problems = [problem.code for problem in snapshot.problems]
    assert "overdue" not in problems
    assert "Held back: queue mail: paused (full disk) by bob" in format_lines(snapshot)
    [told] = build_dict(snapshot)["held_back"]
    assert (told["kind"], told["name"], told["paused"], told["reason"]) == ("queue", "mail", True, "full disk")
    lines = " ".join(explain.explain_state(row, utcnow()))
    assert "waits: queue mail is paused (full disk) by bob" in lines
    actions.resume("mail")
    assert "overdue" in [problem.code for problem in take_snapshot().problems]


# -- in the admin


LIST, ADD = "/admin/django_delayq/control/", "/admin/django_delayq/control/add/"
TYPED = {"kind": "queue", "name": "mail", "paused": "on", "until_0": "", "until_1": "", "reason": "full disk"}


def test_a_queue_is_paused_and_resumed_in_the_admin_and_the_history_tells_it(boss):
    form = boss.get(f"{ADD}?name=mail&paused=on").content.decode()
    assert '<option value="default">' in form
    assert 'value="mail"' in form
    boss.post(ADD, TYPED)
    address = f"{LIST}{Control.objects.get().pk}/change/"
    assert boss.get(f"{ADD}?name=mail&paused=on").url == address
    row = Control.objects.get()
    assert row.restrictions.startswith("paused (full disk) by ")
    assert ledger.read_held_back().queues == {"mail": "full disk"}
    assert "full disk" in text_of(boss.get(LIST))
    assert "paused (full disk" in text_of(boss.get("/admin/django_delayq/overview/"))
    boss.post(LIST, {"action": "resume", "_selected_action": [row.pk]})
    assert not ledger.load_controls()
    history = text_of(boss.get(f"{LIST}{row.pk}/history/"))
    assert "paused (full disk" in history
    assert "no pauses and no limits" in history


def test_what_is_there_no_more_can_be_resumed(boss):
    row = Control.objects.create(name="former", paused=True, most=3)
    boss.post(LIST, {"action": "resume", "_selected_action": [row.pk]})
    assert not ledger.load_controls()


def test_a_queue_that_is_called_like_a_task_is_another_thing():
    held = Control(kind="task", name="mail", paused=True)
    assert held.is_about("default", "mail")
    assert not held.is_about("mail", "tests.app.tasks.noop")


def test_the_form_refuses_what_there_is_not(boss):
    page = text_of(boss.post(ADD, {**TYPED, "name": "emial"}))
    assert "Queue emial does not exist" in page
    assert not Control.objects.exists()


def test_whoever_may_only_look_pauses_nothing():
    viewer = client_for("view_control", "view_schedule")
    assert viewer.get(LIST).status_code == 200
    assert viewer.post(ADD, TYPED).status_code == 403
    assert "Pause or limit" not in text_of(viewer.get("/admin/django_delayq/overview/"))
    assert not Control.objects.exists()
