"""The rows: what the database itself refuses, how definitions are versioned, and the words of the QuerySets."""

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, connection
from django.db.models import F

from django_delayq.models import Condition, Origin, Run, Schedule, ScheduleState, Status
from django_delayq.recurrence.point import utcnow
from tests.integration.admin_pages import client_for
from tests.integration.mirroring import schedule

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
SOON = datetime(2090, 1, 1, tzinfo=UTC)
CRON = {"kind": "cron", "cron": "0 * * * *"}


# -- the database's own constraints

REFUSED = [
    ("nothing set", {"kind": "cron"}),
    ("cron and every", {**CRON, "every": MINUTE}),
    ("cron and at", {**CRON, "at": SOON}),
    ("every and at", {"kind": "every", "every": MINUTE, "at": SOON}),
    ("every without an interval", {"kind": "every"}),
    ("once without an instant", {"kind": "once"}),
    ("the kind of another", {"kind": "once", "every": MINUTE}),
    ("an unknown kind", {"kind": "solar", "cron": "x"}),
    ("interval of zero", {"kind": "every", "every": timedelta(0)}),
    ("negative interval", {"kind": "every", "every": -MINUTE}),
    ("no attempt", {**CRON, "max_attempts": 0}),
    ("negative jitter", {**CRON, "jitter": -MINUTE}),
]


@pytest.mark.parametrize("values", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_the_database_refuses(values):
    with pytest.raises(IntegrityError):
        Schedule._base_manager.bulk_create([Schedule(name="s", task="t", **values)])  # past every check of ours


def test_a_save_that_fails_leaves_the_instance_usable():
    schedule("taken")
    row = schedule("mine")
    row.name = "taken"
    with pytest.raises(IntegrityError):
        row.save()
    assert isinstance(row.generation, int)
    row.name = "other"
    row.save()
    row.delete()
    assert Schedule.objects.count() == 1


# -- versions


def versions(row):
    return Schedule.objects.values_list("generation", "effective_from").get(pk=row.pk)


TIMING = [
    {"cron": "5 * * * *"}, {"timezone": "Europe/Riga"}, {"dst_gap": "skip"}, {"dst_overlap": "twice"},
    {"start_at": SOON}, {"end_at": SOON}, {"enabled": False}, {"kind": "every", "cron": "", "every": MINUTE},
    {"every_from": "finish"}, {"max_runs": 3},
]  # fmt: skip
OTHER = [{"description": "x"}, {"kwargs": {}}, {"queue": "mail"}, {"priority": 5}, {"grace": MINUTE, "timeout": MINUTE}]


def changed(row, values):
    for name, value in values.items():
        setattr(row, name, value)
    return row


WRITERS = [
    lambda row, values: changed(row, values).save(),
    lambda row, values: changed(row, values).save(update_fields=list(values)),
    lambda row, values: Schedule.objects.filter(pk=row.pk).update(**values),
    lambda row, values: Schedule.objects.bulk_update([changed(row, values)], list(values)),
]
WRITTEN = pytest.mark.parametrize("write", WRITERS, ids=["save", "save of fields", "update", "bulk_update"])


@WRITTEN
@pytest.mark.parametrize("values", [*TIMING, *OTHER], ids=str)
def test_every_write_is_a_generation_and_only_timing_moves_effective_from(write, values):
    row = schedule()
    before = versions(row)
    write(row, values)
    after = versions(row)
    assert after[0] > before[0]
    assert (after[1] > before[1]) == (values in TIMING)


@WRITTEN
def test_writing_the_same_timing_again_moves_nothing(write):
    """A job that writes all definitions at each deploy must not restart anybody's interval."""
    row = schedule(kind="every", cron="", every=MINUTE, every_from="finish")
    before = versions(row)
    write(row, {"every": MINUTE, "enabled": True, "description": "x"})
    assert versions(row)[1] == before[1]


def test_a_generation_grows_past_a_clock_that_stepped_back():
    row = schedule()
    ahead = int(time.time() * 1000) + 10**9
    Schedule._base_manager.update(generation=ahead)
    row.save()
    assert row.generation == versions(row)[0] == ahead + 1
    Schedule.objects.update(description="x")
    assert versions(row)[0] == ahead + 2


@WRITTEN
def test_a_generation_grows_past_that_of_a_restored_backup(write):
    """Redis may have seen any generation up to now."""
    row = schedule()
    Schedule._base_manager.update(generation=5)
    before = int(time.time() * 1000)
    write(row, {"description": "x"})
    assert versions(row)[0] >= before


def test_a_stale_instance_does_not_turn_a_generation_back():
    stale = schedule()
    Schedule.objects.update(cron="5 * * * *")
    between = versions(stale)
    stale.description = "x"
    stale.save(update_fields=["description"])
    assert versions(stale)[0] > between[0]
    assert versions(stale)[1] == between[1]
    stale.save()
    assert versions(stale)[1] > between[1], "it wrote the old cron over the new one"


def test_bookkeeping_is_no_edit():
    row = schedule()
    before = versions(row)
    Schedule.objects.update(synced_generation=5)
    row.synced_generation = 6
    row.save(update_fields=["synced_generation"])
    assert versions(row) == before


def test_effective_from_is_never_before_creation():
    row = schedule()
    Schedule._base_manager.update(created_at=SOON)
    Schedule.objects.update(cron="5 * * * *")
    assert versions(row)[1] == SOON


def test_renaming_a_schedule_with_hashed_fields_begins_anew():
    """`H` hangs on the name: a new name is a new recurrence."""
    row = schedule(cron="H H * * *")
    before = versions(row)
    row.name = "another"
    row.save()
    assert versions(row)[1] > before[1]


def test_bulk_create_begins_versions_and_refuses_what_save_refuses():
    good = Schedule(name="good", task="tests.app.tasks.noop", generation=5, **CRON)
    bad = Schedule(name="bad", task="tests.app.tasks.gone", **CRON)
    with pytest.raises(ValidationError, match=r"tests\.app\.tasks\.gone"):
        Schedule.objects.bulk_create([good, bad])
    assert not Schedule.objects.exists()
    Schedule.objects.bulk_create([good])
    assert versions(Schedule.objects.get())[0] > 10**12


def test_bulk_create_over_an_existing_name_is_an_edit():
    row = schedule()
    ahead = row.generation + 10**6
    Schedule._base_manager.update(generation=ahead, synced_generation=ahead)
    new = Schedule(name="s", task="tests.app.tasks.noop", kind="cron", cron="5 * * * *")
    options = {"update_conflicts": True, "unique_fields": ["name"], "update_fields": ["cron"]}
    Schedule.objects.bulk_create([new], **options)
    row.refresh_from_db()
    assert row.cron == "5 * * * *"
    assert row.generation > ahead, "Redis has seen a greater one and would refuse this edit"


# -- the words of the QuerySets


def test_schedules_in_the_words_of_an_operator():
    plain, off, failing, done, stuck = (schedule(name) for name in ("plain", "off", "failing", "done", "stuck"))
    off.pause()
    now = utcnow()
    states = [
        (plain, {"next_due_at": now - MINUTE}), (failing, {"failing_streak": 2, "next_due_at": now + DAY}),
        (done, {"condition": Condition.FINISHED, "next_due_at": now - MINUTE}),
        (stuck, {"condition": Condition.BROKEN}),
    ]  # fmt: skip
    for row, values in states:
        ScheduleState.objects.update_or_create(schedule=row, defaults=values)
    Schedule._base_manager.filter(name__in=["plain", "off", "done", "stuck"]).update(synced_generation=F("generation"))
    Schedule._base_manager.filter(name="failing").update(synced_generation=1)
    fresh = Schedule._base_manager.bulk_create([Schedule(name="fresh", task="t", **CRON)])[0]
    Schedule._base_manager.filter(pk=fresh.pk).update(synced_generation=F("generation"))
    rows = Schedule.objects
    named = {
        "enabled": rows.enabled(), "paused": rows.paused(), "failing": rows.failing(),
        "finished": rows.finished(), "broken": rows.broken(),
        "unmirrored": rows.unmirrored(),
    }  # fmt: skip
    assert {word: sorted(found.values_list("name", flat=True)) for word, found in named.items()} == {
        "enabled": ["failing", "fresh", "plain"],
        "paused": ["off"],
        "failing": ["failing"],
        "finished": ["done"],
        "broken": ["stuck"],
        "unmirrored": ["failing"],
    }


def test_runs_in_the_words_of_an_operator():
    row = schedule()
    for hour, status in enumerate(Status.values):
        Run.build_for(row, SOON + hour * MINUTE, status=status).save()
    Run.objects.filter(status=Status.LOST).update(origin=Origin.MANUAL)
    assert {run.status for run in Run.objects.open()} == {"queued", "running", "retrying"}
    assert {run.status for run in Run.objects.finished()} == {"succeeded", "failed", "skipped", "lost"}
    assert Run.objects.filter(origin="due").count() == len(Status.values) - 1
    assert [Status(status).is_open for status in Status.values] == [True, True, True, False, False, False, False]


def test_history_outlives_its_schedule():
    row = schedule()
    run = Run.build_for(row, SOON, status="succeeded")
    run.save()
    row.delete()
    run.refresh_from_db()
    assert str(run) == "s 2090-01-01 00:00:00 UTC succeeded"
    assert not ScheduleState.objects.exists()


# -- instants


@pytest.mark.parametrize("zone", ["UTC", "Europe/Riga"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_instants_come_back_aware_and_the_same(settings, use_tz, zone):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    instants = [datetime(2090, 7, 1, 12, 30, 15, 123456, tzinfo=UTC), datetime(2090, 10, 29, 0, 30, tzinfo=UTC)]
    instants.append(instants[1] + timedelta(hours=1))  # the same local time in Riga, an hour later
    for instant in [*instants, instants[0].astimezone(ZoneInfo("America/New_York"))]:
        Schedule._base_manager.all().delete()
        row = schedule(start_at=instant)
        row.refresh_from_db()
        assert row.start_at == instant
        assert row.start_at.utcoffset() == timedelta(0)
        assert Schedule.objects.filter(start_at=instant, start_at__lte=instant).get() == row
        assert not Schedule.objects.filter(start_at__gt=instant).exists()
        assert row._meta.get_field("start_at").value_to_string(row).endswith("+00:00")
        assert Schedule.objects.values_list("start_at", flat=True).get() == instant


@pytest.mark.skipif(connection.vendor != "sqlite", reason="asks SQLite what it stored")
def test_without_use_tz_the_column_holds_utc(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Riga"
    schedule(start_at=datetime(2090, 7, 1, 12, tzinfo=UTC))
    with connection.cursor() as cursor:
        cursor.execute("SELECT CAST(start_at AS TEXT) FROM django_delayq_schedule")
        assert cursor.fetchone()[0].startswith("2090-07-01 12:00:00")


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("values", [{"kind": "once", "cron": ""}, {"start_at": SOON}, {"start_at": None}])
def test_a_naive_instant_is_refused_with_the_way_out(settings, use_tz, values):
    """The admin's form makes what is typed aware, also where USE_TZ is off."""
    settings.USE_TZ = use_tz
    field = "at" if values.get("kind") else "end_at"
    values = {**CRON, **values, field: datetime(2090, 7, 1, 12)}  # noqa: DTZ001 - that is what is tested
    with pytest.raises(ValidationError) as caught:
        Schedule(name="s", task="tests.app.tasks.noop", **values).save()
    assert "aware" in caught.value.message_dict[field][0]


def test_the_flush_after_each_test_leaves_what_every_test_finds():
    models = [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]

    def rows():
        found = {model: list(model._base_manager.order_by("pk").values()) for model in models}
        return {model: values for model, values in found.items() if values}

    before = rows()
    assert set(before) == {ContentType, Permission}
    Run.build_for(schedule(), SOON).save()
    client_for("view_schedule")
    assert len(rows()) >= 6
    call_command("flush", verbosity=0, interactive=False, reset_sequences=False, inhibit_post_migrate=False)
    assert rows() == before


def test_migrations_are_complete():
    call_command("makemigrations", "django_delayq", check_changes=True, dry_run=True)  # exits where one is missing


def test_replaced_from_is_where_the_last_enabled_definition_began_that_an_edit_replaced():
    row = schedule(kind="every", every=MINUTE, cron="")
    began = row.effective_from
    assert row.replaced_from is None
    row.pause()
    row.resume()
    assert row.replaced_from == began < row.effective_from  # nothing came due between the two
    resumed = row.effective_from
    Schedule.objects.filter(pk=row.pk).update(every=timedelta(hours=1))
    row.refresh_from_db()
    assert row.replaced_from == resumed < row.effective_from
    retimed = row.effective_from
    Schedule.objects.filter(pk=row.pk).update(every=F("every") * 2)
    row.refresh_from_db()
    assert row.replaced_from == retimed
    row.description = "the same times"
    row.save()
    assert row.replaced_from == retimed
