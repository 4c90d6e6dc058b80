"""The database connections of a worker's threads: no more than one each, and none that a task has left unusable."""

from contextlib import suppress

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, connections, transaction

from django_delayq import actions
from django_delayq.calls import registry
from django_delayq.calls.compat import task
from django_delayq.models import Run, Schedule
from tests.acceptance.support import wait_until
from tests.faults.live import live_worker
from tests.integration.mirroring import schedule

pytestmark = pytest.mark.django_db(transaction=True)
_kept = []
THREADS = 8


def leave_autocommit_off():
    """Write, and neither commit nor roll back."""
    transaction.set_autocommit(False)
    Group.objects.create(name="not committed")


def leave_an_atomic_block():
    """Enter a block that nobody leaves, as a generator does that is not closed."""
    block = transaction.atomic()
    block.__enter__()
    _kept.append(block)
    Group.objects.create(name="not committed")


def leave_an_atomic_block_by_an_error():
    """As above, and fail in it."""
    leave_an_atomic_block()
    raise RuntimeError("on purpose")


def leave_an_aborted_transaction():
    """Swallow the error that makes all further statements of a block errors."""
    leave_an_atomic_block()
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM there_is_no_such_table")


def leave_a_raw_transaction():
    """Begin one that Django knows nothing of."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO auth_group (name) VALUES ('not committed')")


def close_the_driver_s_connection():
    """Close what Django believes to be open."""
    connection.ensure_connection()
    connection.connection.close()


def lose_the_server_s_end():
    """Have the server end this connection, and take no notice."""
    if connection.vendor == "postgresql":
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def write():
    """Commit a row, as any task may."""
    with transaction.atomic():
        Group.objects.create(name=f"committed {Group.objects.count()}")


BREAKS = [
    leave_autocommit_off, leave_an_atomic_block, leave_an_atomic_block_by_an_error, leave_an_aborted_transaction,
    leave_a_raw_transaction, close_the_driver_s_connection, lose_the_server_s_end,
]  # fmt: skip


@pytest.fixture(params=[0, None], ids=["CONN_MAX_AGE=0", "CONN_MAX_AGE=None"])
def max_age(request):
    """How long Django keeps connections."""
    database = connection.settings_dict
    before = database["CONN_MAX_AGE"]
    database["CONN_MAX_AGE"] = request.param
    yield request.param
    database["CONN_MAX_AGE"] = before


def known(monkeypatch, function):
    """Make a function a task that schedules may name; return its path."""
    made = task(function)
    monkeypatch.setitem(registry.get_tasks(), made.module_path, made)
    return made.module_path


def ordered(row):
    """Run a schedule now and return the outcome."""
    run = actions.run_now(row)
    wait_until(lambda: Run.objects.finished().filter(pk=run.pk).exists(), 15, f"the run of {row}")
    return Run.objects.get(pk=run.pk)


@pytest.mark.parametrize("broken", BREAKS, ids=lambda function: function.__name__)
def test_what_a_task_leaves_of_its_connection_does_not_reach_the_next_task_of_its_thread(
    broker, monkeypatch, max_age, broken
):
    first = schedule("first", task=known(monkeypatch, broken))
    second = schedule("second", task=known(monkeypatch, write))
    with live_worker(threads=1):
        for _ in range(2):
            ordered(first)
            run = ordered(second)
            assert run.status == "succeeded", run.error
    assert sorted(Group.objects.values_list("name", flat=True)) == ["committed 0", "committed 1"]
    _kept.clear()


def test_a_restarted_database_fails_no_task_where_django_checks_the_health_of_connections(broker, monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no server")
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
    row = schedule(task=known(monkeypatch, write))
    with live_worker(threads=1):
        for _ in range(2):
            assert ordered(row).status == "succeeded"
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                assert cursor.fetchone()[0] >= 2, "the task's and the worker's"
        assert ordered(row).status == "succeeded"
    assert Group.objects.count() == 3


def use_the_database():
    """Ask something, and stay a while, so that every thread gets its turn."""
    assert Schedule.objects.exists()
    import time

    time.sleep(0.05)  # the others begin meanwhile


def count_connections():
    """Return how many connections to this database there are, and how many of them are in a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone()


def test_a_worker_holds_one_connection_per_thread_at_most_and_none_in_a_transaction(broker, monkeypatch, max_age):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite cannot be asked; the descriptors of F30 count there")
    rows = [schedule(f"s{number}", task=known(monkeypatch, use_the_database)) for number in range(3 * THREADS)]
    with live_worker(threads=THREADS):
        for _ in range(3):
            made = [actions.run_now(row).pk for row in rows]
            wait_until(lambda made=made: Run.objects.finished().filter(pk__in=made).count() == len(made), 15)
        wait_until(lambda: count_connections()[1] == 0, 10, "idle connections")
        most = 2 if max_age == 0 else THREADS + 2  # the loop's and the upkeep's
        wait_until(lambda: count_connections()[0] <= most, 5, f"{count_connections()} to be at most {most}")
        assert max_age == 0 or count_connections()[0] > 2, "the tasks' threads keep theirs"
    wait_until(lambda: count_connections()[0] == 0, 10, "the end of all of them")
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}
    connections.close_all()
