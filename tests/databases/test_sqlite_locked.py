"""The demo of "database is locked": two people save schedules at once, with Django's OPTIONS for SQLite and with ours.

Each is played in a process of its own, with the database of a project made for it.
"""

import ast
import json
import re
import subprocess
import sys

import pytest

from django_delayq import checks
from tests.acceptance.support import ROOT

#: One person's save waits a moment between what it reads and what it writes; another saves meanwhile.
DEMO = """
import json, sys, threading, time
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="x", USE_TZ=True, INSTALLED_APPS=("django.contrib.contenttypes", "django.contrib.auth", "django_delayq"),
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1], "OPTIONS": json.loads(sys.argv[2])}
    },
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
    DELAYQ={"TASK_MODULES": ["demo_tasks"]},
)
django.setup()
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django_delayq.models import Schedule

found = run_checks(tags=["delayq"], include_deployment_checks=True)
before = [message.hint for message in found if message.id == "delayq.W007"]
call_command("migrate", verbosity=0)
rows = [Schedule(name=name, task="x", kind="cron", cron="0 9 * * *") for name in ("one", "two")]
for row in rows:
    row.clean = lambda: None  # there is no task here
    row.save()
read, saved, errors = threading.Event(), threading.Event(), []


def save(row):
    row.description = "changed"
    try:
        row.save()
    except OperationalError as error:
        errors.append(str(error))


def slow():
    with transaction.atomic():
        Schedule.objects.get(name="one")
        read.set()
        saved.wait(1)
        save(rows[0])
    connection.close()


def quick():
    read.wait()
    save(rows[1])
    saved.set()
    connection.close()


people = [threading.Thread(target=person) for person in (slow, quick)]
for person in people:
    person.start()
for person in people:
    person.join()
print(json.dumps([before, errors, Schedule.objects.filter(description="changed").count()]))
"""


def play(tmp_path, options):
    """Return the hints of the check, the errors of the saves, and how many schedules are changed."""
    command = [sys.executable, "-W", "ignore", "-c", DEMO, str(tmp_path / "db.sqlite3"), json.dumps(options)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def hinted():
    """Return the OPTIONS that the check tells to set."""
    return ast.literal_eval(re.search(r'"OPTIONS": (\{.*?\})', checks._HINT)[1])


@pytest.mark.parametrize("lacking", [("transaction_mode", "timeout", "init_command"), ("transaction_mode",)])
def test_without_the_options_a_save_finds_the_database_locked_and_the_check_has_said_so(tmp_path, lacking):
    hints, errors, changed = play(tmp_path, {name: value for name, value in hinted().items() if name not in lacking})
    assert hints == [checks._HINT]
    assert "database is locked" in errors
    assert changed < 2


def test_with_the_options_that_the_check_tells_to_set_both_saves_succeed(tmp_path):
    assert play(tmp_path, hinted()) == [[], [], 2]
