"""The checks of routers and of SQLite's options. They open no connection: these tests have no database."""

import sqlite3

import pytest
from django.core.checks import run_checks
from django.db import connections

from django_delayq import checks
from django_delayq.ledger.bulk import list_missing_options, prepare

GOOD = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"}


def ids(*wanted, deploy=False):
    found = run_checks(tags=["delayq"], include_deployment_checks=deploy)
    return [message for message in found if message.id in wanted]


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.setattr(checks, "TIMEOUT_SECONDS", 0.1)


def test_a_router_that_keeps_runs_apart_from_schedules_is_refused_and_told_what_to_return(settings):
    assert not ids("delayq.E006")
    settings.DATABASE_ROUTERS = ["tests.databases.routers.RunsElsewhere"]
    (message,) = ids("delayq.E006")
    assert "Run to 'history'" in message.msg
    assert "Schedule to 'default'" in message.msg
    assert "db_for_write" in message.hint


def test_a_router_that_sends_the_whole_app_elsewhere_is_fine(settings):
    settings.DATABASE_ROUTERS = ["tests.databases.routers.AppWithReplica"]
    from django_delayq.checks import check_routers

    assert check_routers() == []


@pytest.fixture
def sqlite(tmp_path, monkeypatch):
    """Call with OPTIONS: the app's database is a SQLite file with these."""

    def choose(options, name=None):
        made = connections.create_connection("default")
        database = {**made.settings_dict, "ENGINE": "django.db.backends.sqlite3", "OPTIONS": options}
        database["NAME"] = name or str(tmp_path / "db.sqlite3")
        from django.db.backends.sqlite3.base import DatabaseWrapper

        monkeypatch.setattr(connections._connections, "default", DatabaseWrapper(database, "default"), raising=False)

    return choose


def test_the_options_of_the_readme_pass(sqlite):
    sqlite(GOOD)
    assert not ids("delayq.W007", deploy=True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"transaction_mode": None}, "transaction_mode is not IMMEDIATE"),
        ({"transaction_mode": "deferred"}, "transaction_mode is not IMMEDIATE"),
        ({"timeout": 5}, "timeout is 5 s"),
        ({"timeout": None}, "timeout is None s"),
        ({"init_command": "PRAGMA synchronous=NORMAL;"}, "init_command sets no WAL"),
    ],
)
def test_each_option_that_is_lacking_is_named_with_what_to_set(sqlite, changed, said):
    sqlite({**GOOD, **changed})
    (message,) = ids("delayq.W007", deploy=True)
    assert message.msg.endswith(f": {said}.")
    assert '"transaction_mode": "IMMEDIATE"' in message.hint


def test_django_s_own_defaults_lack_all_three(sqlite):
    sqlite({})
    (message,) = ids("delayq.W007", deploy=True)
    assert message.msg.count(",") == 2
    assert not ids("delayq.W007"), "a fresh project's commands do not warn"


@pytest.mark.parametrize(("options", "found", "left", "timeout"), [({}, 3, 0, 20), ({**GOOD, "timeout": 3}, 1, 1, 3)])
def test_a_worker_sets_what_is_not_set_and_keeps_what_is(sqlite, options, found, left, timeout):
    sqlite(options)
    connection = connections["default"]
    assert len(list_missing_options(connection)) == found
    prepare(connection)
    assert connection.get_connection_params()["timeout"] == timeout
    assert (connection.transaction_mode, connection.init_commands[0]) == ("IMMEDIATE", "PRAGMA journal_mode=WAL")
    assert len(list_missing_options(connection)) == left


def test_a_file_that_is_in_wal_mode_already_needs_no_command(sqlite, tmp_path):
    options = {**GOOD, "init_command": None}
    sqlite(options)
    assert ids("delayq.W007", deploy=True)
    file = sqlite3.connect(tmp_path / "db.sqlite3")
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("CREATE TABLE t (a)")
    file.close()
    assert not ids("delayq.W007", deploy=True)


@pytest.mark.parametrize("name", [":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_a_database_in_memory_has_no_other_processes(sqlite, name):
    sqlite({}, name)
    assert not ids("delayq.W007", deploy=True)


def test_a_project_s_tests_without_redis_are_not_warned(sqlite, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    sqlite({})
    assert not ids("delayq.W007", deploy=True)
