"""The API of docs/api.md, as it stands there, with the real Django REST framework in a project of its own."""

from . import project
from .blocks import read

TEST = """
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django_delayq.models import Run, Schedule
from rest_framework import serializers
from rest_framework.test import APIClient

pytestmark = pytest.mark.django_db
GOOD = {"text": "water", "kind": "cron", "cron": "0 9 * * 1-5", "timezone": "Europe/Riga"}
URL = "/reminders/"


def client(name):
    made = APIClient(raise_request_exception=False)
    made.force_authenticate(User.objects.get_or_create(username=name)[0])
    return made


def test_an_own_schedule_is_made_seen_changed_run_and_deleted(delayq):
    ada = client("ada")
    answer = ada.post(URL, GOOD, format="json")
    assert answer.status_code == 201, answer.content
    url = f"{URL}{answer.json()['id']}/"
    assert ada.get(url).json() | GOOD == ada.get(url).json()
    changed = ada.patch(url, {"kind": "every", "cron": "", "every": "01:00:00"}, format="json")
    assert changed.status_code == 200, changed.content
    assert ada.patch(url, {"text": "milk"}, format="json").json()["every"] == "01:00:00"
    (run,) = delayq.run_due(timedelta(hours=1))
    assert run.result == f"{User.objects.get().pk}: milk"
    assert ada.delete(url).status_code == 204
    assert not Schedule.objects.exists()


def test_nobody_sees_or_changes_what_is_another_s_and_cannot_choose_the_task():
    ada, eve = client("ada"), client("eve")
    url = f"{URL}{ada.post(URL, GOOD, format='json').json()['id']}/"
    assert eve.get(URL).json() == []
    asked = [eve.get(url), eve.patch(url, {"text": "x"}, format="json"), eve.delete(url)]
    assert {answer.status_code for answer in asked} == {404}
    assert APIClient().get(URL).status_code == 403
    forged = {**GOOD, "task": "shop.tasks.other", "kwargs": {"user": 1}, "name": "x", "queue": "y", "user": 0}
    assert eve.post(URL, forged, format="json").status_code == 201
    made = Schedule.objects.get(ownership__owner__username="eve")
    assert made.task == "reminders.tasks.remind"
    assert made.kwargs == {"user": User.objects.get(username="eve").pk, "text": "water"}
    assert (made.queue, made.name[:9]) == ("default", "reminder ")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"cron": "every day"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": ""}, "cron"),
        ({"every": "01:00:00"}, "every"),
        ({"kind": "every", "cron": "", "every": "00:00:00"}, "every"),
        ({"kind": "every", "cron": "", "every": "999999999 00:00:00"}, "every"),
        ({"kind": "once", "cron": "", "at": "2020-01-01T00:00:00Z"}, "at"),
        ({"kind": "never"}, "kind"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"text": ""}, "text"),
    ],
)
@pytest.mark.parametrize("how", ["post", "put", "patch"])
def test_what_save_refuses_is_a_400_at_its_field(how, values, field):
    ada = client("ada")
    url = URL if how == "post" else f"{URL}{ada.post(URL, GOOD, format='json').json()['id']}/"
    before = list(Schedule.objects.values())
    answer = getattr(ada, how)(url, {**GOOD, **values} if how != "patch" else values, format="json")
    assert answer.status_code == 400, answer.content
    assert list(answer.json()) == [field]
    assert list(Schedule.objects.values()) == before


def test_a_user_who_is_deleted_leaves_no_schedule_behind():
    ada, bob = client("ada"), client("bob")
    assert [one.post(URL, GOOD, format="json").status_code for one in (ada, ada, bob)] == [201] * 3
    User.objects.get(username="ada").delete()
    assert [row.ownership.owner.username for row in Schedule.objects.all()] == ["bob"]


def test_a_plain_serializer_takes_what_save_refuses_as_the_page_says():
    class Plain(serializers.ModelSerializer):
        class Meta:
            model = Schedule
            fields = ["name", "task", "kind", "cron"]

    assert Plain(data={**GOOD, "name": "x", "task": "reminders.tasks.remind", "cron": "every day"}).is_valid()
"""


def test_the_api_of_the_page(tmp_path):
    files = {"settings.py": project.SETTINGS + '\nINSTALLED_APPS += ("django_delayq",)\nROOT_URLCONF = "shop.urls"\n'}
    for block in read(["docs/api.md"]):
        files[block.name] = f"{files.get(block.name, '')}\n\n{project.for_this_django(block.text)}"
    files |= {"conftest.py": 'pytest_plugins = ["django_delayq.testing.plugin"]', "test_api.py": TEST}
    project.write(tmp_path, {**files, "reminders/__init__.py": "", "shop/__init__.py": ""})
    assert "34 passed" in project.play(tmp_path, "--nomigrations")
