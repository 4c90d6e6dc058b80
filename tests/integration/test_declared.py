"""Schedules that the code declares: how a sync brings them into the database, and what it leaves to people."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core import serializers
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq.calls import registry
from django_delayq.models import Schedule
from django_delayq.models.columns import from_json, get_values, to_json
from django_delayq.sources import declared
from django_delayq.sources.declared import GONE
from tests.integration.mirroring import at_once, mirrored

pytestmark = pytest.mark.django_db(transaction=True)

NOOP = "tests.app.tasks.noop"
#: Every field, none of them with its default.
FULL = """periodic(
    every=timedelta(minutes=7, microseconds=5), every_from="finish", key="k", name="n", description="d",
    args=[1, [1.5, None, True]], kwargs={"seconds": {"deep": [1]}}, timezone="Europe/Riga", dst_gap="skip",
    dst_overlap="twice", start_at=datetime(2031, 1, 1, tzinfo=UTC), end_at=datetime(2032, 1, 1, 1, 2, 3, 4, tzinfo=UTC),
    max_runs=9, jitter=timedelta(seconds=3), enabled=False, pause_reason="not yet", queue="mail", priority=-3,
    overlap="allow", missed="all", grace=timedelta(seconds=4), catch_up_window=timedelta(days=8), max_catch_up=5,
    timeout=timedelta(seconds=6), max_attempts=2, backoff=timedelta(milliseconds=1),
    keep="last", keep_last=9, expected_within=timedelta(hours=1), ping_url="http://localhost/s",
    on_success=add, on_failure="tests.jobs.tasks.heard_of_run",
)(gather)"""


def the_one(**lookup):
    return Schedule.objects.get(**lookup)


def edit(schedule, **values):
    """Change a schedule as the form does."""
    schedule = the_one(pk=schedule.pk)
    for name, value in values.items():
        setattr(schedule, name, value)
    schedule.save()
    return schedule


def synced(code, source=""):
    """Have the code say this, and bring it into the database; return the report."""
    code.says(source)
    return declared.sync()


# -- what follows the code


def test_a_declaration_becomes_a_schedule_with_every_default_and_is_mirrored(code, broker):
    report = synced(code, "periodic('*/5 * * * *')(noop)")
    row = the_one()
    plain = Schedule(name=NOOP, task=NOOP, kind="cron", cron="*/5 * * * *")
    assert get_values(row) == get_values(plain)
    assert mirrored(broker, row)
    assert report.lines == [f"{NOOP}: created, cron '*/5 * * * *', {NOOP}"]
    assert (report.checked, report.changed, report.problems) == (1, 1, [])


@pytest.fixture(autouse=True)
def hosts(settings):
    settings.DELAYQ = {**settings.DELAYQ, "ALERTS": {"HOSTS": ["localhost"]}}


def test_every_field_can_be_declared_and_comes_back_as_it_was(code):
    code.says(FULL)
    assert declared.sync().problems == []
    row = the_one()
    defaults = get_values(Schedule())
    same = {name for name, value in get_values(row).items() if value == defaults[name]}
    assert same == {"at", "backend", "cron"}  # another kind; reserved


def test_a_sync_without_a_difference_writes_nothing(code):
    code.says(FULL)
    code.adds("periodic('0 9 * * *')(noop)\nperiodic(at=datetime(2040, 1, 1, tzinfo=UTC))(abroken)")
    declared.sync()
    before = list(Schedule.objects.order_by("pk").values())
    with CaptureQueriesContext(connection) as queries:
        report = declared.sync()
    assert (report.checked, report.changed, report.lines) == (3, 0, [])
    assert [query["sql"][:6] for query in queries] == ["SELECT"]
    assert list(Schedule.objects.order_by("pk").values()) == before


def test_what_changes_in_the_code_changes_here_and_only_timing_begins_anew(code, broker):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    first = the_one()
    report = synced(code, "periodic('0 9 * * *', name='s', description='new', max_attempts=4)(noop)")
    second = the_one()
    assert report.lines == ["s: description from '' to 'new'", "s: max_attempts from 1 to 4"]
    assert report.changed == 1
    assert (second.effective_from, second.max_attempts) == (first.effective_from, 4)
    assert second.generation > first.generation
    code.says("periodic(every=timedelta(hours=2), name='s')(noop)")
    assert "s: recurrence from cron '0 9 * * *' to every 2:00:00" in declared.sync().lines
    third = the_one()
    assert (third.kind, third.cron, third.every, third.max_attempts) == ("every", "", timedelta(hours=2), 1)
    assert third.effective_from > second.effective_from
    assert third.pk == first.pk
    assert third.generation == third.synced_generation


def test_a_key_keeps_a_schedule_through_new_names_and_functions(code):
    synced(code, "periodic('0 9 * * *', key='k', name='old')(noop)")
    first = the_one()
    synced(code, "periodic('0 9 * * *', key='k', name='new')(abroken)")
    assert (the_one().pk, the_one().name, the_one().task) == (first.pk, "new", "tests.app.tasks.abroken")


def test_without_a_key_another_function_is_another_schedule(code):
    synced(code, "periodic('0 9 * * *')(noop)")
    synced(code, "periodic('0 9 * * *')(abroken)")
    assert dict(Schedule.objects.values_list("name", "enabled")) == {NOOP: False, "tests.app.tasks.abroken": True}


def test_a_new_key_under_the_same_name_is_the_same_schedule(code):
    synced(code, "periodic('0 9 * * *', key='a', name='n')(noop)")
    before = the_one()
    code.says("periodic('0 9 * * *', key='b', name='n')(noop)")
    would, report = declared.sync(dry_run=True), declared.sync()
    assert would.lines == report.lines == ["n: taken over by the code, its key was 'a'"]
    assert (the_one().pk, the_one().generation) == (before.pk, before.generation)
    assert the_one().declared_key == "b"
    assert declared.sync().changed == 0


def test_only_a_sync_writes_that_a_schedule_is_declared(code):
    stale = Schedule.objects.create(name=NOOP, task=NOOP, kind="cron", cron="0 8 * * *")
    synced(code, "periodic('0 9 * * *')(noop)")
    stale.description = "typed before the sync"
    stale.save()
    assert the_one().is_declared
    copy = the_one()
    copy.pk, copy.name = None, "copy"
    copy.save()
    assert not the_one(name="copy").is_declared
    dumped = serializers.serialize("json", Schedule.objects.filter(name=NOOP))
    next(serializers.deserialize("json", dumped)).save()
    assert the_one(name=NOOP).is_declared


# -- what people own


def test_what_a_person_changed_past_the_admin_is_as_the_code_says_again(code):
    synced(code, "periodic('0 9 * * *', name='s', max_attempts=2)(noop)")
    edit(the_one(), cron="0 8 * * *", max_attempts=5).tags.put(the_one(), ["billing"])
    assert declared.sync().lines == [
        "s: recurrence from cron '0 8 * * *' to cron '0 9 * * *'", "s: max_attempts from 5 to 2",
    ]  # fmt: skip
    assert (the_one().cron, the_one().max_attempts) == ("0 9 * * *", 2)
    assert [tag.name for tag in the_one().tags.all()] == ["billing"]


def test_what_a_person_switched_off_stays_off_and_what_a_person_switched_on_stays_on(code):
    synced(code, "periodic('0 9 * * *', name='a')(noop)\nperiodic('0 9 * * *', name='b', enabled=False)(noop)")
    assert dict(Schedule.objects.values_list("name", "enabled")) == {"a": True, "b": False}
    the_one(name="a").pause("incident")
    the_one(name="b").resume()
    synced(code, "periodic('0 7 * * *', name='a')(noop)\nperiodic('0 7 * * *', name='b', enabled=False)(noop)")
    rows = {row.name: (row.cron, row.enabled, row.pause_reason) for row in Schedule.objects.all()}
    assert rows == {"a": ("0 7 * * *", False, "incident"), "b": ("0 7 * * *", True, "")}


# -- what is gone


def test_what_is_gone_from_the_code_is_disabled_and_back_with_it_also_the_last_one(code, broker):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    report = synced(code)
    row = the_one()
    assert (row.enabled, row.pause_reason) == (False, GONE)
    assert (report.checked, report.lines) == (0, ["s: disabled, the code no longer declares it"])
    assert the_one().declaration_gone_at is not None
    assert not declared.sync() and not declared.sync(dry_run=True)
    code.says("periodic('0 9 * * *', name='s')(noop)")
    began = datetime.now(UTC)
    report = declared.sync()
    row = the_one()
    assert (row.enabled, row.pause_reason, the_one().declaration_gone_at) == (True, "", None)
    assert report.lines == ["s: declared again"]
    assert row.effective_from >= began.replace(microsecond=began.microsecond // 1000 * 1000)
    assert declared.sync().changed == 0


def test_a_schedule_whose_task_is_gone_with_it_is_disabled_too(code):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    Schedule._base_manager.update(task="tests.app.tasks.no_longer_there")
    code.says()
    assert declared.sync().problems == []
    assert not the_one().enabled


@pytest.mark.parametrize("when", ["before it was gone", "while it was gone"])
def test_what_a_person_switched_off_is_not_switched_on_when_it_comes_back(code, when):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    if when == "before it was gone":
        the_one().pause("incident")
    synced(code)
    if when == "while it was gone":
        the_one().pause("incident")
    synced(code, "periodic('0 10 * * *', name='s')(noop)")
    assert (the_one().enabled, the_one().pause_reason, the_one().cron) == (False, "incident", "0 10 * * *")


def test_what_a_person_switches_on_although_it_is_gone_is_not_switched_off_again(code):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    synced(code)
    the_one().resume()
    assert declared.sync().changed == 0
    assert the_one().enabled


def test_nothing_is_gone_where_a_module_cannot_be_imported(code, settings, monkeypatch):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    code.says()
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["tasks", "broken"]}
    monkeypatch.syspath_prepend(settings.SCRATCH)
    (settings.SCRATCH / "declares_badly").mkdir(exist_ok=True)
    (settings.SCRATCH / "declares_badly" / "__init__.py").write_text("")
    (settings.SCRATCH / "declares_badly" / "broken.py").write_text("import nowhere_to_be_found\n")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "declares_badly"]
    with pytest.raises(ImportError, match="nowhere_to_be_found"):
        declared.sync()
    assert the_one().enabled


def test_nothing_is_gone_of_an_app_whose_package_is_missing_in_this_process(code, monkeypatch):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    code.says()
    missing = registry.BrokenModule("tests.app", "tests.app.tasks", "ModuleNotFoundError: …", "celery")
    monkeypatch.setattr(registry, "list_broken_modules", lambda: [missing])
    assert declared.sync().changed == 0
    assert the_one().enabled


# -- what was there before


def test_a_schedule_made_by_hand_for_the_same_task_is_taken_over_but_for_its_switch(code):
    hand = Schedule.objects.create(
        name="s", task=NOOP, kind="cron", cron="0 9 * * *", description="mine", enabled=False
    )
    report = synced(code, "periodic('0 9 * * *', name='s', max_attempts=3)(noop)")
    row = the_one()
    assert (row.pk, row.cron, row.description, row.max_attempts) == (hand.pk, "0 9 * * *", "", 3)
    assert (row.enabled, row.effective_from) == (False, hand.effective_from)
    assert report.lines == [
        "s: taken over by the code, it was made by hand", "s: description from 'mine' to ''",
        "s: max_attempts from 1 to 3",
    ]  # fmt: skip
    assert declared.sync().changed == 0


def test_a_name_of_another_tasks_schedule_is_refused_and_the_others_are_written(code):
    Schedule.objects.create(name="s", task="tests.app.tasks.abroken", kind="cron", cron="0 8 * * *")
    report = synced(code, "periodic('0 9 * * *', name='s')(noop)\nperiodic('0 9 * * *', name='t')(noop)")
    assert len(report.problems) == 1
    for part in ("'s'", NOOP, "tests.app.tasks.abroken", "Rename one of them"):
        assert part in report.problems[0]
    assert set(Schedule.objects.values_list("name", flat=True)) == {"s", "t"}


def test_a_schedule_that_the_code_has_under_another_key_is_not_taken_over(code):
    synced(code, "periodic('0 8 * * *', key='first', name='other')(noop)")
    edit(the_one(), name="s")  # by a person
    code.adds("periodic('0 9 * * *', key='a', name='s')(noop)")
    assert len(declared.sync().problems) == 1
    assert declared.sync().changed == 1, "the other has its own name again"
    assert dict(Schedule.objects.values_list("declared_key", "name")) == {"a": "s", "first": "other"}


def test_a_new_name_that_is_taken_is_refused_and_nothing_of_that_schedule_changes(code):
    Schedule.objects.create(name="taken", task=NOOP, kind="cron", cron="0 8 * * *")
    synced(code, "periodic('0 9 * * *', key='k', name='s')(noop)")
    before = the_one(name="s").generation
    code.says("periodic('0 10 * * *', key='k', name='taken')(noop)")
    assert len(declared.sync().problems) == 1
    assert (the_one(name="s").cron, the_one(name="s").generation) == ("0 9 * * *", before)


def test_what_cannot_be_saved_is_told_and_the_others_are_written(code):
    synced(code, "periodic('0 9 * * *', name='s')(noop)\nperiodic('0 9 * * *', name='t')(noop)")
    code.says("periodic(at=datetime(2020, 1, 1, tzinfo=UTC), name='s')(noop)\nperiodic('0 8 * * *', name='t')(noop)")
    (problem,) = declared.sync().problems
    assert problem.startswith("s: ")
    assert list(Schedule.objects.order_by("name").values_list("cron", flat=True)) == ["0 9 * * *", "0 8 * * *"]


def test_what_is_declared_twice_is_told_and_neither_written_nor_called_gone(code):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    code.adds("periodic('0 8 * * *', name='s')(abroken)")
    report = declared.sync()
    assert len(report.problems) == 2 and all("twice" in problem for problem in report.problems)
    assert (report.changed, the_one().enabled) == (0, True)


@pytest.mark.parametrize(("module", "changed"), [("tests.support", 0), ("tests.faults.tasks", 1)])
def test_what_stands_where_not_every_process_looks_does_not_count_and_in_another_apps_tasks_it_does(
    code, module, changed
):
    code.says("from tests.app.tasks import noop\nperiodic('0 9 * * *', name='s')(noop)", module=module)
    assert declared.sync().changed == changed


def test_a_deleted_schedule_comes_back_as_the_code_says(code):
    synced(code, "periodic('0 9 * * *', name='s')(noop)")
    edit(the_one(), cron="0 8 * * *").delete()
    declared.sync()
    assert the_one().cron == "0 9 * * *"


def test_a_time_that_has_passed_is_not_made_up_for_but_one_that_was_there_is_kept(code):
    report = synced(code, "periodic(at=datetime(2020, 1, 1, tzinfo=UTC), name='s')(noop)")
    assert (report.changed, report.problems) == (0, [])
    assert report.lines == ["s: not created, 2020-01-01 00:00:00 UTC has passed"]
    synced(code, "periodic(at=datetime(2040, 1, 1, tzinfo=UTC), name='s')(noop)")
    past = datetime(2020, 1, 1, tzinfo=UTC)
    Schedule._base_manager.update(at=past)
    code.says("periodic(at=datetime(2020, 1, 1, tzinfo=UTC), name='s', max_attempts=3)(noop)")
    assert declared.sync().lines == ["s: max_attempts from 1 to 3"]


# -- several at once


def test_several_syncs_at_once_do_everything_once_and_without_an_error(code):
    for cron in ("0 9 * * *", "0 10 * * *"):
        code.says(f"for number in range(10): periodic({cron!r}, name=f's{{number}}')(noop)")
        reports = at_once(*[declared.sync] * 4)
        assert all(report.problems == [] for report in reports)
        assert sorted({line.split(":")[1] for report in reports for line in report.lines}) in (
            [" created, cron '0 9 * * *', tests.app.tasks.noop"],
            [" recurrence from cron '0 9 * * *' to cron '0 10 * * *'"],
        )
        assert sum(report.changed for report in reports) == 10
        assert Schedule.objects.filter(cron=cron, declared_key__isnull=False).count() == 10
    code.says()
    assert sum(report.changed for report in at_once(*[declared.sync] * 4)) == 10


def test_syncs_and_people_who_delete_at_once_wait_for_each_other(code):
    synced(code, "for number in range(10): periodic('0 9 * * *', name=f's{number}')(noop)")
    code.says("for number in range(10): periodic('0 10 * * *', name=f's{number}')(noop)")

    def delete():
        for row in Schedule.objects.order_by("name"):
            row.delete()

    reports = at_once(declared.sync, delete, declared.sync)
    assert [report.problems for report in reports if report] == [[], []]
    declared.sync()
    assert Schedule.objects.filter(cron="0 10 * * *", declared_key__isnull=False).count() == 10


def test_what_is_stored_is_json_and_comes_back_equal():
    at = datetime(2030, 5, 6, 7, 8, 9, 1, tzinfo=UTC)
    values = get_values(Schedule(every=timedelta(days=3, microseconds=1), at=at))
    assert from_json(to_json(values)) == values
