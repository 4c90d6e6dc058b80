"""Tags: typed in the form, shown and filtered by in the list, and gone with their schedule."""

import pytest
from django.core.exceptions import ValidationError
from django.db import connection

from django_delayq.models import Schedule, Tag, read_tags
from tests.integration.admin_pages import ADD, HOSTILE, LIST, change_url, client_for, errors, fields, make, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def boss():
    return client_for(superuser=True)


def tags_of(schedule):
    return [tag.name for tag in schedule.tags.all()]


def test_tags_are_typed_between_commas(boss):
    assert boss.post(ADD, fields(tags=" Nightly,billing,, nightly , a  b")).status_code == 302
    schedule = Schedule.objects.get()
    assert tags_of(schedule) == ["a b", "billing", "nightly"]
    page = boss.get(change_url(schedule))
    assert 'value="a b, billing, nightly"' in page.content.decode()
    assert boss.post(change_url(schedule), fields(tags="billing")).status_code == 302
    assert tags_of(schedule) == ["billing"]
    assert boss.post(change_url(schedule), fields(tags="")).status_code == 302
    assert tags_of(schedule) == []


def test_what_is_too_long_or_too_much_is_refused_as_it_was_typed(boss):
    typed = f"fine, {'x' * 51}"
    answer = boss.post(ADD, fields(tags=typed))
    assert errors(answer) == {"tags": [f"“{'x' * 51}” is longer than 50 characters."]}
    assert f'value="{typed}"' in answer.content.decode() and not Schedule.objects.exists()
    with pytest.raises(ValidationError, match="21 tags; at most 20"):
        read_tags(",".join(f"t{number}" for number in range(21)))


def test_the_list_shows_tags_and_filters_by_them_and_by_tasks(boss):
    for name, tags in (("one", ["red", "blue"]), ("two", ["red", HOSTILE]), ("three", [])):
        schedule = make(name)
        schedule.tags.put(schedule, tags)
    make("four", task="tests.app.tasks.add", args=[1])
    page = boss.get(LIST)
    assert "default blue red" in text_of(page).replace("  ", " ") and HOSTILE not in page.content.decode()
    assert [row.name for row in boss.get(f"{LIST}?tag=red&o=1").context["cl"].result_list] == ["one", "two"]
    assert [row.name for row in boss.get(f"{LIST}?task=tests.app.tasks.add").context["cl"].result_list] == ["four"]
    assert not boss.get(f"{LIST}?tag=none").context["cl"].result_list
    assert {row.name for row in Schedule.objects.tagged("blue")} == {"one"}


def test_without_tags_no_filter_offers_them(boss):
    make("one")
    assert "?tag=" not in boss.get(LIST).content.decode()


def test_whoever_may_only_look_reads_them():
    schedule = make("one")
    schedule.tags.put(schedule, ["red"])
    page = text_of(client_for("view_schedule").get(change_url(schedule)))
    assert "Tags: red" in page


def test_a_schedule_that_is_deleted_by_code_without_tags_leaves_nothing_in_the_way():
    schedule, other = make("one"), make("two")
    for row in (schedule, other):
        row.tags.put(row, ["red"])
    other.delete()
    assert Tag.objects.count() == 1
    with connection.cursor() as cursor:  # as code of a former release does
        cursor.execute("DELETE FROM django_delayq_schedulestate WHERE schedule_id = %s", [schedule.pk])
        cursor.execute("DELETE FROM django_delayq_schedule WHERE id = %s", [schedule.pk])
    assert not Schedule.objects.exists() and not Schedule.objects.tagged("red").exists()
