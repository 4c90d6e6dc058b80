"""Declared schedules in `delayq_sync`, after `migrate`, and in the system checks."""

import json

import pytest
from django.core import checks
from django.core.management import CommandError
from django.db import connection
from django.test import override_settings

from django_delayq.checks import check_declared
from django_delayq.models import Schedule
from django_delayq.sources.declared import sync_after_migrate
from tests import support
from tests.integration.mirroring import lose, mirrored, schedule

pytestmark = pytest.mark.django_db(transaction=True)

NOOP = "tests.app.tasks.noop"


def said(command="delayq_sync", *options, **kwargs):
    return support.said(command, *options, **kwargs).splitlines()


def everything():
    return list(Schedule.objects.order_by("pk").values())


# -- delayq_sync


def test_what_is_declared_is_written_first_and_then_mirrored(code, broker):
    code.says("periodic('0 9 * * *', name='s')(noop)")
    assert said() == [
        f"s: created, cron '0 9 * * *', {NOOP}",
        "1 declared schedules, 1 changed.",
        "1 schedules checked, 0 changed.",
    ]
    assert mirrored(broker, Schedule.objects.get())
    assert said()[0] == "1 declared schedules, 0 changed."


def test_a_dry_run_tells_the_same_and_writes_nothing(code, broker):
    code.says("for each in 'abc': periodic('0 9 * * *', name=each)(noop)")
    said()
    Schedule.objects.get(name="a").pause("mine")
    code.says(
        "periodic('0 10 * * *', name='a')(noop)\nperiodic('0 9 * * *', name='b', grace=timedelta(minutes=1))(noop)\n"
        "periodic(every=timedelta(hours=1), name='new')(noop)"
    )
    before = everything()
    would = said("delayq_sync", "--dry-run")
    assert everything() == before
    assert would[:-2] == [
        "a: recurrence from cron '0 9 * * *' to cron '0 10 * * *'",
        "b: grace from nothing to 0:01:00",
        f"new: created, every 1:00:00, {NOOP}",
        "c: disabled, the code no longer declares it",
    ]
    assert would[-2] == "3 declared schedules, 4 would be changed."
    did = said()
    assert did[: len(would) - 2] == would[:-2]
    assert did[len(would) - 2] == "3 declared schedules, 4 changed."


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_what_is_wrong_fails_after_the_rest_was_done(code, broker, options):
    schedule("s", task="tests.app.tasks.abroken")
    code.says("periodic('0 9 * * *', name='s')(noop)\nperiodic('0 9 * * *', name='t', queue='nowhere')(noop)")
    code.adds("periodic('0 9 * * *', name='u')(noop)")
    with pytest.raises(CommandError) as caught:
        said("delayq_sync", *options)
    assert "the name 's'" in str(caught.value).lower() and "t: queue: " in str(caught.value)
    assert Schedule.objects.filter(name="u").exists() is not bool(options)


def test_a_prefix_of_another_database_is_refused_before_anything_is_written(code, broker):
    broker.write_note("layout", '{"database": "another", "version": 1, "shards": {"default": 1, "mail": 1}}')
    code.says("periodic('0 9 * * *', name='s')(noop)")
    with pytest.raises(CommandError, match="another database"):
        said()
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("option", ["--adopt", "--purge"])
def test_other_orders_leave_what_is_declared_alone(code, broker, option):
    code.says("periodic('0 9 * * *', name='s')(noop)")
    said("delayq_sync", option)
    assert not Schedule.objects.exists()


def test_secret_arguments_are_hidden(code):
    code.says("periodic('0 9 * * *', name='s', kwargs={'path': 'redis://me:hunter2@host/'})(note)")
    said()
    code.says("periodic('0 9 * * *', name='s', kwargs={'path': 'redis://me:hunter3@host/', 'text': 'new'})(note)")
    (line, *_) = said()
    assert "'text': 'new'" in line and "hunter" not in line


# -- after migrate


def migrate(settings, **values):
    settings.DELAYQ = {**settings.DELAYQ, **values}
    return said("migrate", verbosity=1)


def test_migrate_syncs_only_where_the_settings_ask_for_it(code, settings):
    code.says("periodic('0 9 * * *', name='s')(noop)")
    migrate(settings)
    migrate(settings, SYNC_AFTER_MIGRATE=True, MIRROR=False)
    assert not Schedule.objects.exists()
    assert f"s: created, cron '0 9 * * *', {NOOP}" in migrate(settings, SYNC_AFTER_MIGRATE=True, MIRROR=True)
    assert Schedule.objects.count() == 1


def test_migrate_is_silent_where_asked_to_be_and_works_without_redis(code, settings, dead_redis):
    settings.DELAYQ = {**settings.DELAYQ, "SYNC_AFTER_MIGRATE": True}
    code.says("periodic('0 9 * * *', name='s')(noop)")
    assert said("migrate", verbosity=0) == []
    assert Schedule.objects.count() == 1


def test_migrate_does_not_fail_because_of_a_schedule_and_logs_it(code, settings, caplog):
    schedule("s", task="tests.app.tasks.abroken")
    code.says("periodic('0 9 * * *', name='s')(noop)\nperiodic('0 9 * * *', name='t')(noop)")
    migrate(settings, SYNC_AFTER_MIGRATE=True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "name 's'" in caplog.text
    assert Schedule.objects.filter(name="t").exists()


def test_migrate_does_not_fail_because_of_the_database_either(code, settings, caplog, monkeypatch):
    code.says("periodic('0 9 * * *', name='s')(noop)")
    monkeypatch.setattr(Schedule._meta, "db_table", "django_content_type")  # there, but without our columns
    migrate(settings, SYNC_AFTER_MIGRATE=True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "manage.py delayq_sync" in caplog.text


def test_a_database_without_our_tables_or_another_one_is_left_alone(code, settings, monkeypatch, caplog):
    settings.DELAYQ = {**settings.DELAYQ, "SYNC_AFTER_MIGRATE": True, "MIRROR": True}
    code.says("periodic('0 9 * * *', name='s')(noop)")
    monkeypatch.setattr(connection.introspection, "table_names", lambda: ["django_content_type"])
    sync_after_migrate("default")
    monkeypatch.undo()
    monkeypatch.setattr("django_delayq.ledger.get_database", lambda: "elsewhere")
    sync_after_migrate("default")
    monkeypatch.undo()
    assert not Schedule.objects.exists() and not caplog.records


# -- checks


def found():
    messages = [found for found in checks.run_checks(tags=["delayq"]) if found.id != "delayq.W004"]  # of a cluster
    assert all(message.hint for message in messages)
    return sorted((message.id, message.msg) for message in messages)


def test_a_good_declaration_is_no_find_nor_is_one_that_has_passed(code):
    code.says("periodic('0 9 * * *')(noop)\nperiodic(at=datetime(2020, 1, 1, tzinfo=UTC))(abroken)")
    assert found() == []


def test_the_check_of_declarations_asks_no_database_which_may_have_no_tables(code, settings, django_assert_num_queries):
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": {"HOSTS": ["hc-ping.com"]}}
    code.says("periodic('0 9 * * *', name='s', ping_url='https://hc-ping.com/x')(noop)")
    with django_assert_num_queries(0):
        assert not check_declared()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("queue='nowhere'", "queue: No setting names the queue 'nowhere'"),
        ("every_from='never'", "every_from"),
        ("start_at=datetime(2030, 1, 1, tzinfo=UTC), end_at=datetime(2030, 1, 1, 1, tzinfo=UTC)", "no due point"),
        ("timeout=timedelta(0)", "timeout"),
    ],
)
def test_what_could_not_be_saved_is_found(code, source, told):
    code.says(f"periodic('0 9 * * *', name='s', {source})(noop)")
    ((number, message),) = found()
    assert number == "delayq.E007"
    assert "'s'" in message and "tests.app.tasks" in message and told in message


def test_what_is_declared_twice_or_where_nobody_looks_is_found(code):
    code.says("periodic('0 9 * * *', key='k')(noop)\nperiodic('0 9 * * *', key='k')(abroken)")
    assert [number for number, _message in found()] == ["delayq.E007"] * 2
    code.says("periodic('0 9 * * *', key='a', name='n')(noop)\nperiodic('0 9 * * *', key='b', name='n')(noop)")
    assert [number for number, _message in found()] == ["delayq.E007"] * 2
    code.says("from tests.app.tasks import noop\nperiodic('0 9 * * *')(noop)", module="tests.support")
    assert [(number, "tests.support" in message) for number, message in found()] == [("delayq.W005", True)]


def test_settings_that_are_wrong_are_told_once(code):
    code.says("periodic('0 9 * * *')(noop)")
    with override_settings(DELAYQ={"QUEUES": []}):
        assert [number for number, _message in found()] == ["delayq.E001"]


def test_sync_tells_programs_what_it_changed_as_json(broker):
    lose(broker, schedule())
    told = json.loads("".join(said("delayq_sync", "--json")))
    assert (told["checked"], told["changed"], told["dry_run"], len(told["lines"])) == (1, 1, False, 1)
