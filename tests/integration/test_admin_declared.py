"""Declared schedules in the admin: what is overridden, the way back to the code, and what a deletion means."""

import pytest
from django.contrib.admin.models import LogEntry

from django_delayq import declared
from django_delayq.models import Declaration, Schedule
from tests.integration.admin_pages import LIST, change_url, client_for, make, text_of, texts

pytestmark = pytest.mark.django_db(transaction=True)

SAID = "periodic('0 9 * * *', name='s', grace=timedelta(minutes=90), kwargs={'path': 'x'})(note)"


@pytest.fixture
def row(code):
    code.says(SAID)
    declared.sync()
    return Schedule.objects.get()


def plain(response):
    """Return what a reader sees."""
    assert response.status_code == 200
    return text_of(response)


def override(row, **values):
    for name, value in values.items():
        setattr(row, name, value)
    row.save()


def reset(client, row):
    return client.post(f"{LIST}{row.pk}/reset/", follow=True)


def test_the_list_tells_what_is_in_the_code_overridden_or_gone(boss, row, code):
    make("h")
    page = boss.get(LIST)
    assert page.content.decode().count('title="Declared as “s”."') == 1 and "overridden" not in plain(page)
    override(row, cron="0 8 * * *", priority=2)
    page = boss.get(LIST)
    assert "2 fields overridden" in plain(page) and 'title="recurrence, priority"' in page.content.decode()
    code.says()
    declared.sync()
    page = plain(boss.get(LIST))
    assert "The code no longer declares this schedule." in page and "overridden" not in page


@pytest.mark.parametrize(
    ("origin", "names"), [("hand", {"h"}), ("code", {"s"}), ("gone", {"g"}), ("x", {"h", "s", "g"})]
)
def test_the_list_can_be_filtered_by_origin(boss, code, origin, names):
    code.says(f"{SAID}\nperiodic('0 9 * * *', name='g')(noop)")
    declared.sync()
    code.says(SAID)
    declared.sync()
    make("h")
    shown = boss.get(LIST, {"origin": origin}).context["cl"].result_list
    assert {schedule.name for schedule in shown} == names


def test_the_form_shows_each_overridden_field_with_what_the_code_says(boss, row):
    assert "as declared" in plain(boss.get(change_url(row)))
    override(row, cron="0 8 * * *", grace=None, enabled=False, pause_reason="incident")
    page = boss.get(change_url(row))
    shown = [(each.label, each.here, each.code) for each in page.context["overrides"]]
    assert shown == [
        ("recurrence", "cron '0 8 * * *'", "cron '0 9 * * *'"),
        ("enabled", "off (incident)", "on"),
        ("grace", "nothing", "1h 30m"),
    ]
    assert all(text in plain(page) for text in ("off (incident)", "1h 30m", "Reset to the code"))


def test_a_schedule_made_by_hand_shows_nothing_of_the_code(boss):
    page = plain(boss.get(change_url(make("h"))))
    assert "Reset" not in page and "as declared" not in page


def test_reset_sets_everything_to_what_the_code_says_and_nothing_else(boss, row):
    generation = row.generation
    override(row, cron="0 8 * * *", enabled=False, pause_reason="incident", description="mine", kwargs={"path": "y"})
    response = reset(boss, row)
    assert texts(response) == ["“s” is as the code declares it."]
    after = Schedule.objects.get()
    assert (after.cron, after.enabled, after.pause_reason, after.description, after.kwargs) == (
        "0 9 * * *", True, "", "", {"path": "x"},
    )  # fmt: skip
    assert after.generation > generation
    assert LogEntry.objects.get().get_change_message() == "Reset to the code."
    assert declared.sync().changed == 0
    again = reset(boss, row)
    assert texts(again) == ["There is nothing to reset."]
    assert Schedule.objects.get().generation == after.generation


def test_reset_says_why_where_it_cannot(boss, row):
    override(row, cron="0 8 * * *")
    Declaration.objects.update(values={**Declaration.objects.get().values, "end_at": "2001-01-01T00:00:00+00:00"})
    (message,) = texts(reset(boss, row))
    assert message.startswith("It cannot be reset: There is no due point")
    assert Schedule.objects.get().cron == "0 8 * * *"
    Schedule.objects.all().delete()
    declared.sync()
    row = Schedule.objects.get()
    override(row, name="another")
    make("s")
    assert "Name already exists" in texts(reset(boss, row))[0]


def test_what_is_gone_or_made_by_hand_is_not_reset(boss, row, code):
    override(row, cron="0 8 * * *")
    code.says()
    declared.sync()
    assert texts(reset(boss, row)) == ["There is nothing to reset."]
    assert texts(reset(boss, make("h"))) == ["There is nothing to reset."]
    assert Schedule.objects.get(name="s").cron == "0 8 * * *"
    assert "no longer declares this schedule" in plain(boss.get(change_url(row)))


def test_reset_needs_the_permission_and_a_post(row):
    override(row, cron="0 8 * * *")
    viewer = client_for("view_schedule")
    assert viewer.post(f"{LIST}{row.pk}/reset/").status_code == 403
    assert "Reset" not in plain(viewer.get(change_url(row)))
    changer = client_for("view_schedule", "change_schedule")
    assert "what people have changed in it is lost" in changer.get(f"{LIST}{row.pk}/reset/").content.decode()
    assert Schedule.objects.get().cron == "0 8 * * *"
    assert changer.post(f"{LIST}{row.pk}/reset/").status_code == 302
    assert Schedule.objects.get().cron == "0 9 * * *"


def test_secrets_are_hidden_on_both_sides(row):
    override(row, kwargs={"path": "redis://me:hunter2@here/"})
    Declaration.objects.update(
        values={**Declaration.objects.get().values, "kwargs": {"path": "redis://me:hunter2@code/"}}
    )
    page = client_for("view_schedule").get(change_url(row)).content.decode()
    assert "@here/" in page and "@code/" in page and "hunter2" not in page


def test_before_a_deletion_it_is_told_that_the_schedule_comes_back(boss, row, code):
    hand = make("h")
    warning = "comes back as declared with the next sync"
    assert warning in plain(boss.get(f"{LIST}{row.pk}/delete/"))
    assert warning not in plain(boss.get(f"{LIST}{hand.pk}/delete/"))
    for chosen, count in (([hand.pk], 0), ([hand.pk, row.pk], 1)):
        page = boss.post(LIST, {"action": "delete_selected", "_selected_action": chosen})
        assert plain(page).count(warning) == count
    code.says()
    declared.sync()
    assert warning not in plain(boss.get(f"{LIST}{row.pk}/delete/"))
    assert boss.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Declaration.objects.exists()


def test_who_may_only_delete_schedules_may_delete_a_declared_one(row):
    client = client_for("view_schedule", "delete_schedule")
    assert client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exists()
