"""What the tests of the admin share: clients with permissions, schedules, the values of a form."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client

from django_delayq.calls import generate_tokens
from django_delayq.models import Run, Schedule
from django_delayq.recurrence.point import utcnow

LIST = "/admin/django_delayq/schedule/"
RUNS = "/admin/django_delayq/run/"
ADD = f"{LIST}add/"
HOSTILE = "<script>alert(1)</script>"


def client_for(*codenames: str, superuser: bool = False) -> Client:
    """Return a logged-in client with these permissions."""
    user = User.objects.create_user(f"u{User.objects.count()}", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def make(name: str = "s", **values: object) -> Schedule:
    return Schedule.objects.create(
        **{"name": name, "task": "tests.app.tasks.noop", "kind": "cron", "cron": "0 9 * * *", **values}
    )


def make_job(*args: object, error: str = "Traceback\nRuntimeError: no luck", **values: Any) -> Run:
    """Insert the row of a job, by default of one that has failed a moment ago, as a worker leaves it."""
    now = values.pop("at", utcnow())
    fields = {
        "task": "tests.app.tasks.add", "queue": "default", "backend": "default", "generation": 0, "origin": "job",
        "separate": True, "token": generate_tokens(1)[0], "call": {"args": [*args], "kwargs": values.pop("kwargs", {})},
        "due_at": now, "created_at": now, "status": "failed", "attempt": 1, "worker": "w-1", "claimed_at": now,
        "started_at": now, "finished_at": now, "expires_at": now + timedelta(days=30), "error": error,
        "reason": (error.splitlines() or [""])[-1][:200], **values,
    }  # fmt: skip
    return Run.objects.create(**fields)


def fields(**values: str) -> dict[str, str]:
    """Return what the add form posts for a valid cron schedule, changed by `values`."""
    return {
        "name": "s", "description": "", "task": "tests.app.tasks.noop", "args": "[]", "kwargs": "{}", "kind": "cron",
        "cron": "0 9 * * *", "every": "", "every_from": "due", "at_0": "", "at_1": "", "timezone": "Europe/Riga",
        "start_at_0": "", "start_at_1": "", "end_at_0": "", "end_at_1": "", "max_runs": "", "queue": "default",
        "enabled": "on", "pause_reason": "", "overlap": "skip", "missed": "latest", "grace": "", "catch_up_window": "",
        "max_catch_up": "100", "jitter": "", "max_attempts": "1", "backoff": "10s", "dst_gap": "run_after",
        "dst_overlap": "once", **values,
    }  # fmt: skip


def errors(response) -> dict[str, list[str]]:
    assert response.status_code == 200
    return dict(response.context["adminform"].form.errors)


def change_url(schedule: Schedule) -> str:
    return f"{LIST}{schedule.pk}/change/"


def chosen(response) -> dict[str, list[str]]:
    """Return what the page that asks would post."""
    found: dict[str, list[str]] = {"apply": ["1"]}
    for name, value in response.context["hidden"]:
        found.setdefault(name, []).append(str(value))
    return found


def texts(response) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def text_of(response) -> str:
    """Return what a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def kill_redis(settings: Any) -> None:
    """Point the alias to a port where nothing listens, until the end of the test."""
    location = {"LOCATION": "redis://127.0.0.1:1/0", "OPTIONS": {}}
    settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], **location}}
