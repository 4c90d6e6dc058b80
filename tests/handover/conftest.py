"""What is handed over here is accepted by real backends and executed by their own workers, all of them processes."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection

from django_delayq.embedded import EmbeddedServer
from tests.acceptance.support import PATIENCE_SECONDS, ROOT, command_environment
from tests.handover import settings as handover

#: The table of django-tasks-db. Its app is installed in the processes only.
TABLE = "django_tasks_database_dbtaskresult"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server of RQ's own: its keys have no prefix of ours."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture(scope="module")
def tables(django_db_setup: None) -> None:
    """The tables of django-tasks-db in the test database."""
    run("migrate", "django_tasks_database", "--verbosity", "0")


@pytest.fixture
def others(settings: object, server: EmbeddedServer, tables: None) -> dict[str, str]:
    """Know the other backends here too, as a web process does; return the environment of processes that do."""
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {TABLE}")  # noqa: S608 - a constant
    settings.TASKS = handover.TASKS
    settings.RQ_QUEUES = {"default": {"URL": server.url}}
    return environment(server.url)


def environment(rq_url: str = "redis://127.0.0.1:1/0", **more: str) -> dict[str, str]:
    """Return the environment of a process that knows the other backends; nobody listens at RQ's default."""
    return {"DJANGO_SETTINGS_MODULE": "tests.handover.settings", "DELAYQ_TEST_RQ_URL": rq_url, **more}


def run(*command: str, within: dict[str, str] | None = None) -> str:
    """Run a management command to its end, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "django", *command],
        env=command_environment(within or environment()),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
