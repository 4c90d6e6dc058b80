"""`manage.py delayq_status`: why a point or a job did or did not run."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command

from django_delayq import actions
from django_delayq.calls import parse_id
from django_delayq.models import Run, Schedule, ScheduleState
from tests.app import tasks
from tests.integration.admin_pages import make
from tests.support import DAILY_CRON, DAY, YEARLY_CRON, make_due, run_burst, said

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def told(schedule: object, **options: object) -> str:
    return said("delayq_status", schedule.name if isinstance(schedule, Schedule) else schedule, **options)


def old(**values: object) -> Schedule:
    """Return a schedule that has existed for years, at 09:00 UTC by default."""
    schedule = make(**{"timezone": "UTC", **values})
    Schedule._base_manager.filter(pk=schedule.pk).update(created_at=LONG_AGO, effective_from=LONG_AGO)
    return Schedule.objects.get(pk=schedule.pk)


def due(broker, **values: object) -> tuple[Schedule, datetime]:
    schedule = make(cron=DAILY_CRON, timezone="UTC", **values)
    return schedule, make_due(broker, schedule)


def row(schedule: Schedule, due_at: datetime, **values: object) -> Run:
    defaults = {"schedule_name": schedule.name, "task": schedule.task, "queue": schedule.queue, "generation": 1}
    return Run.objects.create(schedule=schedule, due_at=due_at, **{**defaults, "status": "skipped", **values})


def iso(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat()


# -- what the ledger knows


def test_a_point_that_nobody_claims_asks_for_a_worker_and_is_then_told_with_attempts_latency_and_worker(broker):
    schedule, point = due(broker)
    text = told(schedule, at=iso(point))
    assert "has no outcome yet" in text and "Check that a worker serves this queue." in text
    run_burst()
    text = told(schedule, at=iso(point))
    assert f"{point:%Y-%m-%d %H:%M:%S} UTC: succeeded." in text
    assert "1 attempt, latency " in text and ", took " in text and f"worker {Run.objects.get().worker}" in text
    assert told(str(schedule.pk), at=iso(point)) == text
    assert "Its newest run:" in told(schedule)


def test_a_failure_shows_its_last_line(broker):
    schedule, point = due(broker, task="tests.app.tasks.fail")
    run_burst()
    text = told(schedule, at=iso(point))
    assert ": failed." in text and "Error: " in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("status", "reason", "sentence", "advice"),
    [
        ("skipped", "overlap", "still busy with an earlier run", "queue_one"),
        ("skipped", "missed", "No worker was free in time", "missed to all"),
        ("skipped", "catch_up_window", "older than the catch-up window", "make catch_up_window longer"),
        ("skipped", "max_catch_up", "max_catch_up (100) permits", "increase it"),
        ("skipped", "edited", "changed before this started", "Run now"),
        ("skipped", "paused", "paused before this started", "Run now"),
        ("failed", "paused", "paused while this waited", ""),
        ("lost", "paused", "worker died, and the schedule was paused", ""),
        ("failed", "catch_up_window", "after the catch-up window", "backoff shorter"),
        ("lost", "catch_up_window", "worker died, and the catch-up window had passed", ""),
        ("lost", "poison", "after three take-overs", "Check what kills the worker"),
        ("lost", "the schedule was deleted", "the schedule was deleted", ""),
    ],
)
def test_every_reason_is_a_sentence_and_says_what_to_change(status, reason, sentence, advice):
    schedule = old()
    row(schedule, NOW.replace(hour=9), status=status, reason=reason)
    text = told(schedule, at="2026-11-21 09:00")
    assert f"2026-11-21 09:00:00 UTC: {status}." in text
    assert sentence in text and advice in text


@pytest.mark.parametrize(("points", "said"), [(12, "12 due times in one row"), (0, "unknown number of due times")])
def test_a_point_inside_a_skipped_stretch_is_explained_by_the_stretch(points, said):
    schedule = old()
    row(schedule, NOW.replace(day=1, hour=9), last_due_at=NOW.replace(day=12, hour=9), points=points, reason="missed")
    text = told(schedule, at="2026-11-05 09:00")
    assert said in text and "2026-11-01 09:00:00 UTC to 2026-11-12 09:00:00 UTC" in text
    assert "No worker was free in time" in text
    assert said not in told(schedule, at="2026-11-13 09:00")


def test_what_was_skipped_for_overlap_names_the_run_that_was_busy():
    schedule = old(cron="0 * * * *")
    begun = NOW.replace(hour=8)
    busy = row(schedule, begun, status="succeeded", finished_at=begun + timedelta(minutes=75))
    row(schedule, NOW.replace(hour=9), reason="overlap")
    text = told(schedule, at="2026-11-21 09:00")
    assert "busy with the run of 2026-11-21 08:00:00 UTC, which ended at 2026-11-21 09:15:00 UTC" in text
    Run.objects.filter(pk=busy.pk).update(status="running", finished_at=None)
    assert "the run of 2026-11-21 08:00:00 UTC, which has not ended" in told(schedule, at="2026-11-21 09:00")


def test_what_was_paused_or_meant_another_time_then_says_so_first():
    schedule = old()
    schedule.pause("double credits", by="bob")
    schedule.cron = "0 11 * * *"
    schedule.save()
    schedule.resume()
    while_paused, before, after = NOW.replace(hour=9), NOW.replace(day=19, hour=9), NOW.replace(day=23, hour=9)
    pause, edit, resumed = schedule.definitions.order_by("pk")
    for kept, at in ((pause, NOW.replace(day=20)), (edit, NOW.replace(day=22)), (resumed, NOW.replace(day=22))):
        type(kept).objects.filter(pk=kept.pk).update(replaced_at=at)
    Schedule._base_manager.filter(pk=schedule.pk).update(effective_from=NOW.replace(day=22))
    lines = told(schedule, at=iso(while_paused)).splitlines()
    assert "was paused then (double credits): no run started." in lines[1]
    assert "Its recurrence then: at 09:00, every day, UTC." in lines[2]
    assert "was paused then" not in told(schedule, at=iso(before)), "it was not paused yet"
    assert "then" not in told(schedule, at=iso(after)).replace("strengthen", "")


def test_an_order_of_a_person_does_not_stand_for_the_point():
    schedule = old()
    run = actions.run_now(schedule)
    text = told(schedule, at=iso(run.due_at))
    assert "(run now, started by a user)" in text and "waits in queue default" in text
    assert "is not a due time of the current definition" in text


# -- no row


@pytest.mark.parametrize(
    ("values", "at", "sentences"),
    [
        ({}, "2019-05-05 09:00", ["did not exist then: it was created at 2020-01-01 00:00:00 UTC"]),
        ({}, "2026-11-20 10:00", [
            "is not a due time", "Previous due time: 2026-11-20 09:00:00", "Next due time: 2026-11-21 09:00:00",
        ]),
        ({"cron": "0 9 24 12 *"}, "2025-12-24 10:00", [
            "Previous due time: 2025-12-24 09:00", "Next due time: 2026-12-24 09:00",
        ]),
        ({"end_at": datetime(2100, 1, 1, tzinfo=UTC)}, "2100-02-02 09:00", ["ended at 2100-01-01", "end_at"]),
        ({"start_at": datetime(2050, 1, 1, tzinfo=UTC)}, "2049-12-12 09:00", ["begins at 2050-01-01", "start_at"]),
        ({"kind": "every", "cron": "", "every": timedelta(hours=1), "every_from": "finish"}, "2025-01-01 00:30", [
            "from the end of the last run",
        ]),
        ({"cron": "* * * * * *"}, "2050-01-01 09:00", ["09:00:00 UTC comes in ", "59 more due times. Add the second"]),
        ({"cron": "* * * * * *"}, "2050-01-01 09:00:30", ["2050-01-01 09:00:30 UTC comes in "]),
        ({"jitter": timedelta(minutes=5)}, "2050-01-01 09:00", ["09:00:00 UTC comes in ", "its jitter"]),
        ({"max_runs": 3}, "2050-01-01 09:00", ["3 runs are left of max_runs"]),
        ({"timezone": "Europe/Riga", "cron": "30 3 * * *"}, "2050-03-27 03:30", [
            "does not exist in Europe/Riga", "03:30 does not exist on this day, runs at 04:00",
            "2050-03-27 04:00:00 EEST comes in ",
        ]),
        ({"timezone": "Europe/Riga", "cron": "30 3 * * *", "dst_gap": "skip"}, "2050-03-27 03:30", [
            "does not exist in Europe/Riga", "is not a due time", "2050-03-27 03:30 does not exist, skipped",
        ]),
        ({"timezone": "Europe/Riga", "cron": "30 3 * * *"}, "2050-10-30 03:30", [
            "occurs twice in Europe/Riga", "2050-10-30T03:30:00+02:00", "runs the first time",
            "03:30:00 EEST comes in ",
        ]),
        ({"timezone": "Europe/Riga", "cron": "30 3 * * *"}, "2050-10-30T03:30:00+02:00", [
            "is not a due time", "dst_overlap = once",
        ]),
    ],
)  # fmt: skip
def test_a_point_without_a_row_is_told_why(values, at, sentences):
    text = told(old(**values), at=at)
    for sentence in sentences:
        assert sentence in text


def test_what_lies_before_the_last_edit_does_not_count():
    schedule = old()
    schedule.cron = "0 10 * * *"
    schedule.save()
    for hour in (9, 10):
        text = told(schedule, at=f"2025-11-01 {hour}:00")
        assert "changed, paused or resumed at" in text


def test_a_point_that_was_due_at_the_edit_is_still_decided_once(broker):
    schedule, point = due(broker)
    schedule = Schedule.objects.get()
    schedule.cron = YEARLY_CRON
    schedule.save()
    text = told(schedule, at=iso(point))
    assert "was due when the definition was changed, and still runs once" in text
    assert "no worker has claimed it" in text


def test_a_decided_point_whose_row_is_gone_is_told():
    schedule = old()
    ScheduleState.objects.update_or_create(schedule=schedule, defaults={"last_due_at": NOW.replace(hour=9)})
    assert "has an outcome, but its row was deleted." in told(schedule, at="2026-11-21 09:00")


def test_obstacles_are_told():
    schedule = old()
    ScheduleState.objects.update_or_create(schedule=schedule, defaults={"condition": "broken", "condition_reason": "x"})
    assert "It is broken: x. Edit" in told(schedule, at="2050-01-01 09:00")
    ScheduleState.objects.update(condition="finished", condition_reason="It has run 3 times.")
    assert "It is finished: It has run 3 times." in told(schedule)
    Schedule._base_manager.update(enabled=False, pause_reason="incident", task="tests.app.tasks.gone")
    text = told(schedule, at="2050-01-01 09:00")
    assert "Redis" not in text  # it holds no such schedule, and should not
    assert "It is paused (incident)" in text and "No installed app has the @task function" in text
    assert "2020-01-02 09:00:00 UTC: not run." in told(schedule, at="2020-01-02 09:00")
    Schedule._base_manager.update(cron="61 * * * *")
    assert "no valid recurrence: minute field" in told(schedule, at="2050-01-01 09:00")
    assert "minute field" in told(schedule)


# -- Redis


def test_who_holds_the_lease_is_told(broker):
    schedule, point = due(broker)
    (place,) = [place for place in broker.list_shards() if place.queue == "default"]
    assert broker.claim(place, limit=1, lease_ms=30_000, request=1).entries
    assert f"A worker leases {point:%Y-%m-%d %H:%M:%S} UTC until " in told(schedule, at=iso(point))
    assert f"A worker leases {point:%Y-%m-%d %H:%M:%S} UTC until " in told(schedule)
    opened = row(schedule, point, status="running", worker="host-1", claimed_at=point, started_at=point)
    text = told(schedule, at=iso(point))
    assert ": running." in text and f"Worker host-1 leases {point:%Y-%m-%d %H:%M:%S} UTC until " in text
    later = point + DAY
    assert "waits for an earlier point" in told(schedule, at=iso(later))
    opened.status = "retrying"
    opened.save()
    assert "The last attempt failed. It is retried" in told(schedule, at=iso(point))


def test_what_redis_does_not_hold_is_told(broker):
    schedule = make()
    assert "In Redis, it waits for" in told(schedule)
    Schedule._base_manager.update(generation=schedule.generation + 1)
    assert "The last edit is not in Redis yet" in told(schedule)
    broker.purge()
    assert "It is not in Redis yet" in told(schedule)


def test_it_works_without_redis_and_says_so(dead_redis):
    schedule = old()
    row(schedule, NOW.replace(hour=9), status="succeeded", attempt=1)
    assert ": succeeded." in told(schedule, at="2026-11-21 09:00")
    assert "Redis does not answer" in told(schedule, at="2050-01-01 09:00")
    assert "Redis does not answer" in told(schedule)
    job = tasks.add.enqueue(1)
    assert ": queued." in told_of(job) and "Redis does not answer" in told_of(job)


def test_a_project_that_does_not_mirror_is_told(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    assert "DELAYQ['MIRROR'] is False" in told(make())


# -- jobs


def told_of(result, **options):
    return said("delayq_status", job=result if isinstance(result, str) else result.id, **options)


def test_a_job_that_waits_is_told_with_what_it_waits_for(broker):
    later = tasks.add.using(queue_name="mail", run_after=timedelta(hours=1)).enqueue(1)
    text = told_of(later)
    assert text.startswith(f"tests.app.tasks.add: job {parse_id(later.id)[0]}, enqueued at ")
    assert " in queue mail by the TASKS alias default." in text and ": queued." in text
    assert "It starts at " in text and "In Redis, it waits for " in text
    assert told_of(str(parse_id(later.id)[0])) == text
    assert parse_id(later.id)[1] not in text, "who knows that may read the result"
    ready = tasks.add.enqueue(2)
    assert "It starts at" not in told_of(ready)
    assert "as one of 1 in queue default, and no worker has claimed it." in told_of(ready)
    actions.limit("default", 3, by="ann")
    assert "queue default: 3 at a time." in told_of(ready)
    actions.pause(queue="default", reason="smtp down")
    text = told_of(ready)
    assert "waits: queue default is paused (smtp down)" in text and "Check that a worker serves" not in text
    broker.purge()
    assert "It is not in Redis yet" in told_of(ready)


def test_of_many_that_are_due_it_is_told_how_many(built):
    *_, last = tasks.noop.enqueue_many([([], {})] * 5)
    assert "as one of 5 in queue default, and no worker has claimed it" in told_of(last)


def test_a_job_that_runs_or_is_tried_again_is_told(broker):
    job = tasks.fail.using(max_attempts=3, backoff=100).enqueue()
    run_burst()
    text = told_of(job)
    assert ": retrying." in text and "1 attempt, latency " in text
    assert "It is retried, up to 3 attempts." in text and "waits until " in text and "Error: RuntimeError" in text
    Run.objects.update(status="running", worker="host-1", started_at=NOW, attempt=1)
    text = told_of(job)
    assert ": running." in text and "It was started at 2026-11-21 12:00:00 UTC." in text and "worker host-1" in text


def test_a_job_that_has_ended_is_told_with_its_outcome_and_how_long_its_row_is_kept(broker):
    good, bad, off = tasks.add.enqueue(1), tasks.fail.enqueue(), tasks.add.using(run_after=DAY).enqueue(1)
    run_burst()
    off.task.get_backend().cancel(off.id)
    text = told_of(good)
    assert ": succeeded." in text and "1 attempt, latency " in text and "Its row is kept until " in text
    assert "Redis" not in text
    assert ": failed." in told_of(bad) and "Error: RuntimeError" in told_of(bad)
    assert ": failed." in told_of(off) and "Cancelled before it started." in told_of(off)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"task": "shop.tasks.gone"}, "No installed app has the @task function shop.tasks.gone"),
        ({"backend": "gone"}, "TASKS of this process has no alias gone; other workers may run the job"),
        ({"queue": "gone"}, "DELAYQ['QUEUES'] of this process has no queue gone; other workers may serve it"),
        ({"unique_key": "0" * 32}, "It holds its unique key until it starts"),
        ({"unique_key": "0" * 32, "options": {"unique_until": "end"}}, "It holds its unique key until it has ended"),
        ({"status": "lost", "reason": "poison"}, "three take-overs"),
    ],
)
def test_what_keeps_a_job_from_running_is_told(broker, values, sentence):
    job = tasks.add.enqueue(1)
    assert sentence not in told_of(job)
    Run.objects.update(**values)
    assert sentence in told_of(job)


# -- the command


@pytest.mark.parametrize("wanted", ["7", "9" * 40, "x", "", f"7-{'a' * 22}"])
def test_a_job_that_is_not_there_is_told(wanted):
    actions.run_now(make())
    Run.objects.update(id=7)
    with pytest.raises(CommandError, match="There is no job with the id"):
        told_of(wanted)


@pytest.mark.parametrize(
    "words",
    [
        ["--next", "3"],
        ["--at", "9:00"],
        *(["--job", "1", *more] for more in (["s"], ["--next", "3"], ["--at", "9:00"])),
    ],
)
def test_at_and_next_need_a_schedule_and_a_job_takes_neither(words):
    with pytest.raises(CommandError, match=r"need the name of a schedule|takes no schedule, --at or --next"):
        call_command("delayq_status", *words)


def test_next_lists_points_with_their_annotations():
    schedule = make(cron="0 9 * * *", timezone="UTC", max_runs=2, enabled=False)
    lines = told(schedule, next=5).splitlines()
    assert [line[11:23] for line in lines[:2]] == ["09:00:00 UTC"] * 2
    assert lines[2].endswith("skipped: end reached, it runs 2 times")
    assert "not enabled" in lines[3]
    finished = make("done", kind="once", cron="", at=datetime.now(UTC) + timedelta(days=1))
    Schedule._base_manager.filter(pk=finished.pk).update(at=LONG_AGO)
    assert told("done", next=1) == "There is no further due time.\n"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nightly", {}, "Did you mean 'Nightly report'?"),
        ("999999", {}, "no schedule with the name or id '999999'."),
        ("9" * 40, {}, "no schedule"),
        ("Nightly report", {"at": "soon"}, "2026-11-21T09:00:30+02:00"),
        ("Nightly report", {"at": "2026-13-41 09:00"}, "is not a time"),
        ("Nightly report", {"at": ""}, "is not a time"),
        ("Nightly report", {"at": "9999-12-31T23:59:30-12:00"}, "is outside the calendar"),
        ("Nightly report", {"at": "9999-12-31T23:59"}, "is outside the calendar"),
        ("Nightly report", {"next": 0}, "--next must be from 1 to 1000"),
        ("Nightly report", {"next": 1001}, "--next must be from 1 to 1000"),
    ],
)
def test_bad_input_is_told_what_to_write(name, options, message):
    make("Nightly report")
    with pytest.raises(CommandError) as caught:
        told(name, **options)
    assert message in str(caught.value)


def test_a_zone_that_is_gone_is_a_plain_error():
    schedule = make()
    Schedule._base_manager.update(timezone="Nowhere/Land")
    with pytest.raises(CommandError, match="no time zone"):
        told(schedule)
