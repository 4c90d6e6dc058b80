"""Who did what: definitions that edits replaced, their differences and the way back, and the list of all acts."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq import ledger
from django_delayq.admin import schedule_history
from django_delayq.admin.schedule_history import format_message
from django_delayq.models import Definition, Run, Schedule, kept
from django_delayq.recurrence.point import utcnow
from django_delayq.sources import declared
from tests.integration.admin_pages import (
    HOSTILE,
    LIST,
    RUNS,
    change_url,
    chosen,
    client_for,
    fields,
    make,
    make_job,
    text_of,
    texts,
)
from tests.integration.test_admin_failures import PAGE as FAILURES
from tests.integration.test_admin_failures import act, fail, links, rows_of

pytestmark = pytest.mark.django_db(transaction=True)
AUDIT = "/admin/django_delayq/auditentry/"
CONTROLS = "/admin/django_delayq/control/"
ADD = {"task": "tests.app.tasks.add"}
SECRET = {"task": "tests.app.tasks.urgent", "kwargs": {"token": "hunter2"}}


def history(row):
    return f"{LIST}{row.pk}/history/"


def restore(row, definition):
    return f"{LIST}{row.pk}/restore/?definition={definition.pk}"


def events(page):
    """Return (who, what) of each line, and what it has changed, the newest first."""
    found = []
    for event in page.context["events"]:
        lines = re.findall(r"<dt>(.*?)</dt><dd><del>(.*?)</del>.*?<ins>(.*?)</ins>", str(event.changes), re.DOTALL)
        cells = [tuple(" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in line) for line in lines]
        found.append((event.who, event.text, cells))
    return found


def listed(page):
    """Return (of what, what) of each line of the audit, the newest first."""
    assert page.status_code == 200
    return [(entry.object_repr, format_message(entry)) for entry in page.context["cl"].result_list]


def test_an_edit_keeps_what_it_replaces():
    row = make(**ADD, args=[1])
    first = row.generation
    row.cron, row.changed_by = "30 9 * * *", "ann"
    row.save()
    (old,) = row.definitions.all()
    assert (old.since, old.generation, old.followed_by, old.by) == (first, first, row.generation, "ann")
    assert old.values["cron"] == "0 9 * * *" and old.values["args"] == [1]
    assert old.is_followed_by(row)
    row.pause("holidays", by="bob")
    row.resume()
    assert [each.by for each in row.definitions.order_by("pk")] == ["ann", "bob", ""], (
        "whoever it was is forgotten then"
    )


def test_versions_that_are_the_same_are_one():
    row = make()
    generations = [row.generation]
    for _time in range(3):
        row.save()
        generations.append(row.generation)
    row.description = "new"
    row.save()
    (old,) = row.definitions.all()
    assert (old.since, old.generation) == (generations[0], generations[-1]) and old.is_followed_by(row)
    for generation in generations:
        assert Definition.objects.find_generation(row.pk, generation) == old
    assert Definition.objects.find_generation(row.pk, row.generation) is None


def test_of_each_schedule_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr(kept, "KEPT", 3)
    one, two = make("one"), make("two")
    for number in range(5):
        one.description = two.description = f"edit {number}"
        one.save()
        two.save()
    for row in (one, two):
        assert [each.values["description"] for each in row.definitions.order_by("pk")] == ["edit 1", "edit 2", "edit 3"]


@pytest.mark.parametrize("rows", [1, 3])
def test_an_update_keeps_them_as_far_as_it_is_of_a_few(monkeypatch, rows):
    monkeypatch.setattr(kept, "MOST_AT_ONCE", 2)
    monkeypatch.setattr("django_delayq.models.schedule.MOST_AT_ONCE", 2)
    made = [make(f"s{number}") for number in range(rows)]
    Schedule.objects.update(description="new", priority=F("priority") + 1)
    assert Definition.objects.count() == (1 if rows == 1 else 0)
    if rows == 1:
        row = Schedule.objects.get()
        assert row.definitions.get().is_followed_by(row)
    else:
        made[0].refresh_from_db()
        made[0].save()
        assert not Definition.objects.find_generation(made[0].pk, made[0].generation)


def test_what_is_rolled_back_keeps_nothing_and_what_is_deleted_leaves_nothing():
    row, others = make(), [make("one"), make("two")]
    with pytest.raises(RuntimeError), transaction.atomic():
        row.pause()
        raise RuntimeError
    assert not Definition.objects.exists()
    for each in (row, *others):
        each.refresh_from_db()
        each.pause()
    assert Definition.objects.count() == 3
    row.delete()
    assert Definition.objects.count() == 2
    Schedule.objects.all().delete()
    assert not Definition.objects.exists()


def test_a_definition_is_restored_but_for_the_switch():
    row = make(**ADD, args=[1], timeout=timedelta(minutes=5))
    row.cron, row.args, row.timeout = "30 9 * * *", [2], None
    row.save()
    row.pause("holidays")
    assert row.definitions.order_by("pk")[0].restore(by="ann")
    row.refresh_from_db()
    assert (row.cron, row.args, row.timeout) == ("0 9 * * *", [1], timedelta(minutes=5))
    assert not row.enabled and row.pause_reason == "holidays"
    newest = row.definitions.order_by("pk").last()
    assert newest.values["args"] == [2] and newest.by == "ann"
    assert not row.definitions.order_by("pk")[0].restore()


def test_a_sync_says_that_it_was_it(code):
    code.says("periodic('0 9 * * *', name='s')(noop)")
    declared.sync()
    code.says("periodic('0 9 * * *', name='s', description='new')(noop)")
    declared.sync()
    assert Schedule.objects.get().definitions.get().by == "delayq_sync"


def test_the_history_tells_who_changed_what_from_what_to_what(boss):
    row = make(**ADD, args=[1])
    assert client_for("view_schedule", "change_schedule").post(
        change_url(row),
        fields(task=row.task, args="[2]", cron="30 9 * * 1-5", timezone=row.timezone, timeout="5m"),
    ).status_code == 302  # fmt: skip
    boss.post(f"{LIST}{row.pk}/pause/", {"reason": "holidays"})
    boss.post(f"{LIST}{row.pk}/run-now/")
    Schedule.objects.get().resume()
    page = boss.get(history(row))
    (resumed, ran, paused, edited) = events(page)
    assert resumed == ("", "", [("enabled", "no, holidays", "yes")])
    assert ran == ("u0", "Run now.", [])
    assert paused == ("u0", "Paused: holidays", [("enabled", "yes", "no, holidays")])
    assert edited[0] == "u1" and "Cron expression" in edited[1]
    told = {label: (before, after) for label, before, after in edited[2]}
    assert told["recurrence"] == (
        f"at 09:00, every day, {row.timezone} 0 9 * * *",
        f"at 09:30, Monday to Friday, {row.timezone} 30 9 * * 1-5",
    )
    assert told["timeout"] == ("–", "5m")
    assert told["positional arguments"] == ("[1]", "[2]")
    assert "Restore this definition" in text_of(page)


def test_an_edit_of_nothing_is_no_line_and_one_that_was_not_kept_is_said(boss, monkeypatch):
    row = make()
    row.save()
    assert events(boss.get(history(row))) == []
    row.description = "one"
    row.save()
    monkeypatch.setattr("django_delayq.models.schedule.MOST_AT_ONCE", 0)
    Schedule.objects.update(description="two")
    (event,) = boss.get(history(row)).context["events"]
    assert "two" in event.changes and "one" not in event.changes
    assert "not kept" in event.note


def test_only_secrets_that_differ_are_said_to_differ(boss):
    row = make(**SECRET)
    row.kwargs = {"token": "hunter3"}
    row.save()
    for address in (history(row), restore(row, row.definitions.get())):
        page = boss.get(address)
        assert "differs in what is hidden" in text_of(page) and "hunter" not in page.content.decode()


def test_restoring_shows_the_difference_asks_overwrites_no_later_edit_and_is_logged(boss):
    row = make(cron="0 9 * * *")
    row.cron = "30 9 * * *"
    row.save()
    address = restore(row, row.definitions.get())
    assert address in boss.get(history(row)).content.decode()
    others = client_for("view_schedule", "run_schedule", "pause_schedule")
    assert "restore/" not in others.get(history(row)).content.decode()
    assert others.get(address).status_code == others.post(address, {"seen": row.generation}).status_code == 403
    asked = boss.get(address)
    assert "at 09:30, every day" in text_of(asked) and "at 09:00, every day" in text_of(asked)
    assert Schedule.objects.get().cron == "30 9 * * *", "it only asks"
    posted = chosen(asked)
    row.cron = "45 9 * * *"
    row.save()
    page = boss.post(address, posted)
    assert "in the meantime; nothing was restored" in texts(page)[0] and "45" in text_of(page)
    assert Schedule.objects.get().cron == "45 9 * * *", "what somebody has changed meanwhile is not overwritten"
    posted = chosen(boss.get(address))
    done = boss.post(address, posted, follow=True)
    assert "“s” is restored." in texts(done)
    assert Schedule.objects.get().cron == "0 9 * * *"
    who, text, changes = events(done)[0]
    assert who == "u0" and text.startswith("Restored the definition of") and changes[0][0] == "recurrence"
    again = boss.post(address, {**posted, "seen": str(Schedule.objects.get().generation)}, follow=True)
    assert "There is nothing to restore." in texts(again)


def test_what_cannot_be_restored_says_why(boss):
    row = make(kind="once", cron="", at=utcnow() + timedelta(days=1))
    row.at += timedelta(days=1)
    row.save()
    old = row.definitions.get()
    old.values["at"] = (utcnow() - timedelta(days=1)).isoformat()
    old.save()
    address = restore(row, old)
    page = boss.post(address, chosen(boss.get(address)))
    assert "has passed" in texts(page)[0] and Schedule.objects.get().at == row.at
    assert "no longer kept" in texts(boss.get(f"{LIST}{row.pk}/restore/?definition=x", follow=True))[0]
    other = make("other")
    page = boss.get(restore(other, old), follow=True)
    assert "no longer kept" in texts(page)[0], "it is another one's"


def test_hostile_values_are_escaped(boss):
    row = make(description=HOSTILE, args=[HOSTILE], task="tests.app.tasks.fail", pause_reason=HOSTILE, enabled=False)
    row.description, row.args, row.enabled, row.changed_by = HOSTILE * 5, ["x" + HOSTILE], True, HOSTILE
    row.save()
    for address in (history(row), restore(row, row.definitions.get())):
        page = boss.get(address).content.decode()
        assert "script" in page and HOSTILE not in page
    LogEntry.objects.log_actions(User.objects.get().pk, [row], 2, HOSTILE)
    for typed in (HOSTILE, "\0", ""):
        page = boss.get(AUDIT, dict.fromkeys(("q", "kind"), typed), follow=True)
        assert page.status_code == 200 and HOSTILE not in page.content.decode()


def test_a_history_of_any_length_costs_the_same(boss):
    row = make()
    boss.get(history(row))  # loads what Django keeps for all requests, such as content types
    counts = []
    for number in (2, 22):
        for edit in range(number):
            row.description = f"edit {number} {edit}"
            row.save()
        with CaptureQueriesContext(connection) as captured:
            boss.get(history(row))
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_a_run_shows_the_definition_that_it_ran_with(boss):
    row = make(**SECRET)
    run = Run.build_for(row, utcnow(), status="succeeded")
    run.save()
    address = f"/admin/django_delayq/run/{run.pk}/change/"
    page = boss.get(address)
    assert "at 09:00, every day" in text_of(page) and "token" in text_of(page)
    assert "The schedule has not changed since this run." in text_of(page)
    row.cron, row.kwargs = "30 9 * * *", {}
    row.save()
    page = boss.get(address)
    assert "The schedule was changed since." in text_of(page)
    assert "at 09:00, every day" in text_of(page) and "at 09:30, every day" in text_of(page)
    assert "hunter2" not in page.content.decode() and history(row) in page.content.decode()
    assert "at 09:00" not in text_of(client_for("view_run").get(address))
    Definition.objects.all().delete()
    assert "Not kept: a bulk update or SQL replaced it" in text_of(boss.get(address))
    row.delete()
    assert "Not kept: the schedule was deleted." in text_of(boss.get(address))


def test_every_act_of_an_operator_is_in_the_list(boss, built):
    row = make(cron="0 9 * * *")
    running = Run.build_for(row, utcnow(), status="running", started_at=utcnow())
    running.save()
    boss.post(f"{LIST}{row.pk}/pause/", {"reason": "why"})
    boss.post(f"{RUNS}{running.pk}/stop/")
    held, died = make_job(status="running"), make_job()
    boss.post(f"{RUNS}{held.pk}/stop/")
    boss.post(f"{RUNS}{died.pk}/delete/")
    boss.post(f"{CONTROLS}add/", {"kind": "queue", "name": "mail", "most": "3"})
    LogEntry.objects.create(user=User.objects.get(), object_repr="of others", action_flag=1)
    found = boss.get(AUDIT)
    assert listed(found) == [
        ("queue mail", "3 at a time"),
        (str(died), "Deleted."),
        (str(held), "Stop requested."),
        (str(running), "Stop requested."),
        ("s", "Paused: why"),
    ]
    page = found.content.decode()
    assert f"{RUNS}{died.pk}/change/" not in page, "it is gone"
    assert all(address in page for address in (f"{RUNS}{held.pk}/change/", history(row)))
    assert ledger.read_stop_requests([running.pk, held.pk, died.pk]) == {running.pk: "u0", held.pk: "u0"}
    for run in (held, running):
        link = links(boss.get(f"{RUNS}{run.pk}/change/"), "History")[0]
        assert "Stop requested." in text_of(boss.get(link))


def test_the_list_is_narrowed_by_user_object_and_date(boss):
    one, two = make("one"), make("two")
    boss.post(f"{LIST}{one.pk}/pause/")
    client_for("view_schedule", "change_schedule").post(f"{LIST}{two.pk}/pause/")
    boss.post(f"{CONTROLS}add/", {"kind": "queue", "name": "mail", "most": "3"})
    LogEntry.objects.filter(object_repr="one").update(action_time=timezone.now() - timedelta(days=9))

    def names(**asked):
        return [name for name, _text in listed(boss.get(AUDIT, asked))]

    assert names() == ["queue mail", "two", "one"]
    assert names(q="u0") == ["queue mail", "one"] and names(q="u1") == ["two"]
    assert names(kind="control") == names(q="MAIL") == ["queue mail"]
    assert names(kind="schedule", object_id=str(one.pk)) == ["one"]
    assert names(action_time__gte=str(timezone.now() - timedelta(days=7))) == ["queue mail", "two"]
    assert names(q="%") == names(kind="run") == []


def test_a_history_is_read_page_by_page_and_nothing_is_left_out(boss, monkeypatch):
    monkeypatch.setattr(schedule_history, "PAGE", 2)
    row = make()
    for number in range(3):
        row.description = str(number)
        row.save()
        boss.post(f"{LIST}{row.pk}/run-now/")
    pages = [boss.get(f"{history(row)}?page={number}") for number in (1, 2, 3)]
    assert [[text for _who, text, _changes in events(page)] for page in pages] == [["Run now.", ""]] * 3
    assert links(pages[0], "Next page") and not links(pages[2], "Next page")


def test_everybody_sees_what_they_may_see_and_changes_nothing(boss):
    row = make()
    running = Run.build_for(row, utcnow(), status="running", started_at=utcnow())
    running.save()
    boss.post(f"{LIST}{row.pk}/pause/")
    boss.post(f"/admin/django_delayq/run/{running.pk}/stop/")
    assert client_for("view_run").get(AUDIT).status_code == 403
    assert [text for _name, text in listed(client_for("view_schedule").get(AUDIT))] == ["Paused."]
    assert len(listed(client_for("view_schedule", "view_run").get(AUDIT))) == 2
    assert listed(client_for("view_schedule").get(AUDIT, {"kind": "run"})) == []
    entry = LogEntry.objects.latest("pk")
    for view in ("add/", f"{entry.pk}/change/", f"{entry.pk}/delete/", f"{entry.pk}/history/"):
        assert boss.get(f"{AUDIT}{view}").status_code == 404
    boss.post(AUDIT, {"action": "delete_selected", "_selected_action": [entry.pk], "post": "yes"})
    assert LogEntry.objects.count() == 2


def test_a_dismissal_is_seen_and_taken_back(boss, broker):
    fail(make())
    act(boss, boss.get(FAILURES))
    assert rows_of(boss.get(FAILURES)) == []
    shown = boss.get(FAILURES, {"dismissed": "1"})
    assert " dismissed " in text_of(shown) and ">Undo the dismissal<" in shown.content.decode()
    assert act(client_for("view_run", "view_schedule"), shown).status_code == 403
    act(boss, shown)
    assert len(rows_of(boss.get(FAILURES))) == 1
    run = Run.objects.get()
    assert listed(boss.get(AUDIT)) == [(str(run), "The dismissal was undone."), (str(run), "Dismissed.")]
    assert run.dismissed_until is None
