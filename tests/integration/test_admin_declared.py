"""Declared schedules in the admin: what people edit of them, and what a deletion means."""

import pytest

from django_delayq import declared
from django_delayq.models import Declaration, Schedule
from tests.integration.admin_pages import LIST, change_url, client_for, make, text_of

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


def test_the_list_tells_what_is_in_the_code_or_gone(boss, row, code):
    make("h")
    assert boss.get(LIST).content.decode().count('title="Declared as “s”."') == 1
    code.says()
    declared.sync()
    assert "The code no longer declares this schedule." in plain(boss.get(LIST))


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


def test_people_edit_the_switch_and_the_tags_and_nothing_else(boss, row, code):
    page = boss.get(change_url(row))
    assert {*page.context["adminform"].form.fields} == {"enabled", "pause_reason", "tags", "seen"}
    assert "owns all but enabled" in plain(page) and "0 9 * * *" in plain(page)
    assert "Declared as “s” in tests.app.tasks." in plain(page)
    posted = {"seen": row.generation, "pause_reason": "incident", "tags": "billing", "cron": "0 8 * * *", "args": "[1]"}
    assert boss.post(change_url(row), posted).status_code == 302
    after = Schedule.objects.get()
    assert (after.enabled, after.pause_reason, after.cron, after.args) == (False, "incident", "0 9 * * *", [])
    assert (after.kwargs, [tag.name for tag in after.tags.all()]) == ({"path": "x"}, ["billing"])
    assert boss.post(f"{LIST}{row.pk}/preview/", {}).status_code == 200
    assert boss.get(f"{LIST}{row.pk}/restore/").status_code == 403
    code.says()
    declared.sync()
    assert "cron" in boss.get(change_url(row)).context["adminform"].form.fields


def test_a_schedule_made_by_hand_shows_nothing_of_the_code(boss):
    assert "owns all but" not in plain(boss.get(change_url(make("h"))))


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
