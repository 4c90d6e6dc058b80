"""What pages and status say where work waits, no worker runs, schedules fail or Redis is away: only what is true."""

from datetime import timedelta

import pytest
from django.utils import translation

from django_delayq import actions
from django_delayq.models import Control, Run, Schedule, ScheduleState
from django_delayq.monitoring import explain
from django_delayq.monitoring.database_side import Named, StateCounts
from django_delayq.monitoring.problems import judge
from django_delayq.monitoring.redis_side import RedisView
from django_delayq.monitoring.snapshot import Snapshot
from django_delayq.recurrence.point import utcnow
from tests.integration.admin_pages import (
    LIST,
    change_url,
    client_for,
    fields,
    kill_redis,
    make,
    make_job,
    text_of,
    texts,
)
from tests.integration.probing import ask, build, text, well
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["well"]
GLANCE, NOW = "/admin/django_delayq/overview/", "/admin/django_delayq/overview/now/"
WAITS = "waits: queue mail is paused (smtp down) by admin"
ENABLED = 'delayq-good">enabled<'
UNKNOWN = "unknown while Redis does not answer"


def page(client, address):
    return text_of(client.get(address))


def late(broker, name="s", **values):
    """Return a schedule of which a point has been due for hours."""
    schedule = make(name, **{"cron": DAILY_CRON, **values})
    make_due(broker, schedule, timedelta(hours=2))
    return schedule


def test_a_schedule_of_a_paused_queue_waits_in_the_same_words_everywhere(boss, well):
    schedule = late(well, queue="mail")
    paused = actions.pause("mail", reason="smtp down", by="admin")
    shown = {
        "list": page(boss, LIST), "change": page(boss, change_url(schedule)), "overview": page(boss, GLANCE),
        "now": page(boss, NOW), "why": page(boss, f"{LIST}{schedule.pk}/why/"), "status": text(),
        "explain": "\n".join(explain.explain_state(schedule, utcnow())),
    }  # fmt: skip
    for name, words in shown.items():
        assert WAITS in words, name
        assert "the workers keep up" not in words and "ll is well" not in words, name
    row = boss.get(LIST).content.decode()
    assert ENABLED not in row and "overdue" not in row
    assert "Check that a worker serves" not in shown["explain"], "it is the pause"
    assert "overdue" not in shown["change"] and shown["status"].splitlines()[0] == WAITS
    assert ask()[0] == 0, "what people want is no problem"
    address, why = f"/admin/django_delayq/control/{paused.pk}/change/", f"{LIST}{schedule.pk}/why/"
    assert address in boss.get(why).content.decode()
    assert address not in client_for("view_schedule").get(why).content.decode()


def test_a_pause_of_its_task_is_named_and_one_of_another_queue_is_not(boss, well):
    schedule = late(well)
    actions.pause("mail", reason="smtp down", by="admin")
    change = page(boss, change_url(schedule))
    assert "waits:" not in change and "overdue" in change and "the workers keep up" not in page(boss, LIST)
    actions.pause(task="tests.app.tasks.noop")
    assert "waits: task tests.app.tasks.noop is paused" in page(boss, change_url(schedule))
    assert page(boss, LIST).count("waits: task tests.app.tasks.noop is paused") == 1


def test_a_limit_and_a_pause_that_has_ended_are_no_pauses(boss, well):
    late(well, queue="mail")
    actions.limit("mail", 1)
    actions.pause("mail", until=utcnow() + timedelta(hours=1))
    Control.objects.update(until=utcnow() - timedelta(seconds=1))
    assert "queue mail: 1 at a time" in page(boss, GLANCE)
    shown = boss.get(LIST).content.decode()
    assert ENABLED in shown and "overdue" in shown and "waits" not in shown.split('id="result_list"')[1]


def test_a_failing_schedule_that_waits_shows_both(boss, well):
    ScheduleState.objects.filter(schedule=late(well, queue="mail")).update(failing_streak=3)
    actions.pause("mail", reason="smtp down", by="admin")
    row = page(boss, LIST)
    assert "failing, 3 in a row" in row and WAITS in row


def test_without_a_worker_nothing_keeps_up(boss, broker):
    build(broker)
    for words in (page(boss, LIST), page(boss, GLANCE), page(boss, change_url(make(enabled=False))), text()):
        assert "No worker runs." in words
        assert "the workers keep up" not in words and "ll is well" not in words


def test_a_limit_or_a_paused_schedule_leaves_the_line_as_it_is(boss, well):
    assert 'delayq-good">all is well' in boss.get(GLANCE).content.decode()
    make(enabled=False), actions.limit("mail", 1)
    assert 'delayq-quiet">the workers keep up' in boss.get(GLANCE).content.decode()
    assert 'delayq-good">the workers keep up' in boss.get(LIST).content.decode()


def test_what_status_does_not_know_is_no_remark():
    assert judge(Snapshot()) == []
    found = Snapshot(redis=RedisView((), ()), states=StateCounts(Named(1001, ()), Named(0, ()), 0, 0))
    assert [each.message for each in judge(found)] == ["No worker runs.", "1000+ schedules fail"]


def test_failed_jobs_are_counted_for_their_queues(boss, well):
    make_job(), make_job(), make_job(queue="mail", status="lost")
    make_job(reason="cancelled", started_at=None)  # while it waited: nothing has failed
    shown = boss.get(GLANCE)
    assert "3 failed jobs" in text_of(shown)
    cells = {str(name): dict(cells) for name, cells in shown.context["queues"]}
    assert [cells[name]["failed jobs"] for name in cells] == ["2", "1"]


def test_without_redis_what_is_unknown_is_called_so_and_the_database_tells_the_rest(boss, settings):
    now, good = utcnow(), settings.CACHES
    schedule = make()
    Run.build_for(schedule, now, status="failed", claimed_at=now, finished_at=now).save()
    make_job(), actions.pause("mail", reason="smtp down", by="admin")
    kill_redis(settings)
    shown, listed, running, told = page(boss, GLANCE), page(boss, LIST), page(boss, NOW), text()
    settings.CACHES = good
    assert (
        "No task has run for more than a second." in running
        and "1 failed job" not in running
        and "1 failed job" in told
    )
    assert "No worker runs" not in shown and UNKNOWN in shown
    assert "failed 0" not in shown and "succeeded 0" not in shown
    assert "The last minutes are unknown while Redis does not answer." in shown
    assert "1 failed job" in shown and WAITS in shown
    assert "the workers keep up" not in shown + listed


def test_a_schedule_of_a_missing_task_does_not_count_down(boss, well):
    schedule = make(cron="", kind="every", every=timedelta(minutes=5))
    make_due(well, schedule)
    Schedule._base_manager.update(task="tests.app.tasks.gone")
    schedule.refresh_from_db()
    for address in (LIST, change_url(schedule)):
        shown = page(boss, address)
        assert "task missing: does not run" in shown, address
        assert "overdue" not in shown and "starts in" not in shown
    assert ENABLED not in boss.get(LIST).content.decode()
    why = page(boss, f"{LIST}{schedule.pk}/why/")
    assert "task missing: does not run" in why and "Next:" not in why
    assert explain.list_next(schedule, 1)[-1] == "task missing: does not run"
    assert page(boss, change_url(schedule)).count("task missing: does not run") == 2, "beside the next due times too"


def test_why_calls_a_pause_a_pause_and_resumes(boss, broker):
    schedule = make(cron=DAILY_CRON, timezone="UTC")
    make_due(broker, schedule)
    run_burst()
    boss.post(f"{LIST}{schedule.pk}/pause/", {"reason": "incident"})
    why = f"{LIST}{schedule.pk}/why/"
    shown = boss.get(why)
    assert "It is paused (incident) by u0: no run starts until it is resumed." in text_of(shown)
    assert "has been edited since" not in text_of(shown)
    resume = f"{LIST}{schedule.pk}/resume/"
    assert f'<form method="post" action="{resume}">' in shown.content.decode()
    viewer = client_for("view_schedule")
    assert resume not in viewer.get(why).content.decode() and viewer.post(resume).status_code == 403
    assert "continues with its next due time" in texts(boss.post(resume, follow=True))[0]
    shown = page(boss, why)
    assert "has been edited since" not in shown and "It is paused" not in shown
    assert boss.post(change_url(schedule), fields(task="tests.app.tasks.noop")).status_code == 302
    assert "The definition has been edited since." in page(boss, why)


def test_why_names_no_user_where_what_the_pause_replaced_is_not_kept(broker):
    schedule = make()
    schedule.description = "x"
    schedule.changed_by = "ann"
    schedule.save()
    Schedule._base_manager.update(enabled=False, generation=schedule.generation + 1)
    schedule.refresh_from_db()
    lines = explain.explain_state(schedule, utcnow())
    assert "It is paused: no run starts until it is resumed." in lines


def test_the_history_has_the_tags_of_an_edit_and_restoring_says_that_they_stay(boss):
    schedule = make(timezone="Europe/Riga", max_catch_up=100)
    schedule.tags.put(schedule, ["billing"])
    boss.post(change_url(schedule), fields(tags="nightly, mail", description="new"))
    assert "Tags (billing → mail, nightly)" in page(boss, f"{LIST}{schedule.pk}/history/")
    with translation.override("de"):
        boss.post(change_url(schedule), fields(tags="", description="new"), headers={"accept-language": "de"})
    assert "Tags (mail, nightly → –)" in page(boss, f"{LIST}{schedule.pk}/history/")
    restore = f"{LIST}{schedule.pk}/restore/?definition={schedule.definitions.first().pk}"
    assert "Its tags, its runs and whether it is paused do not change." in page(boss, restore)
