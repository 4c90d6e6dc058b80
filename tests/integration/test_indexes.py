"""Indexes of our own: found by whatever case, and added to a table in use, also after an interruption."""

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.state import ProjectState

from django_delayq.indexes import AddIndexConcurrently, PrefixIndex
from django_delayq.models import Schedule
from tests.integration.admin_pages import make

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "delayq_schedule_name_prefix"


def plan(rows) -> str:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
        try:
            return str(rows.explain())
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET enable_seqscan")
    return str(rows.explain())


def test_names_and_tasks_are_found_by_how_they_begin_by_an_index():
    make("Daily report")
    for text in ("daily", "DAILY R"):
        assert Schedule.objects.filter(name__istartswith=text).exists()
    found = plan(Schedule.objects.order_by().filter(name__istartswith="daily").values("pk"))
    assert NAME in found, found
    found = plan(Schedule.objects.order_by().filter(task__istartswith="tests.app").values("pk"))
    assert "delayq_schedule_task_prefix" in found, found


def add() -> None:
    """Do what the migration does."""
    state = ProjectState.from_apps(apps)
    operation = AddIndexConcurrently("schedule", PrefixIndex(fields=["name"], name=NAME))
    with connection.schema_editor(atomic=False) as editor:
        operation.database_forwards("django_delayq", editor, state, state)


def valid() -> list[tuple[int, bool]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexrelid::bigint, indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [NAME])
        return cursor.fetchall()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL adds indexes to a table in use")
def test_a_migration_that_was_interrupted_is_run_again():
    before = valid()
    add()
    assert valid() == before, "what is there is left"
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = to_regclass(%s)", [NAME])
    add()
    ((index, usable),) = valid()
    assert usable and index != before[0][0], "made anew"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP INDEX {NAME}")
    add()
    assert valid()[0][1]
