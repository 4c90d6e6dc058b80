"""Edits by SQL, which give no generation: the sweep finds them by the digest, and no due point in the past comes of it.
And edits through Django, which must never be taken for them.
"""

from datetime import UTC, datetime, timedelta

import pytest
from django.core import serializers
from django.db import connection
from django.db.models import F

from django_delayq import actions, sync
from django_delayq.ledger import chain
from django_delayq.models import Run, Schedule, ScheduleState, Tombstone
from django_delayq.recurrence import from_ms, to_ms
from django_delayq.recurrence.point import utcnow
from django_delayq.sync import after_commit
from tests.integration.mirroring import absent, mirrored, schedule, view
from tests.support import YEARLY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def by_sql(row, **columns):
    """Edit a row as `psql` would."""
    names = ", ".join(f"{name} = %s" for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {Schedule._meta.db_table} SET {names} WHERE id = %s", [*columns.values(), row.pk])  # noqa: S608


TOMORROW = datetime.now(UTC) + timedelta(days=1)
YEARLY = {"cron": YEARLY_CRON}
HASHED = {"cron": "H H * * *"}
JITTERED = {"cron": YEARLY_CRON, "jitter": timedelta(minutes=30)}

RETIMED = [
    ("cron", YEARLY, {"cron": "* * * * *"}),
    ("time zone", YEARLY, {"timezone": "Asia/Tokyo"}),
    ("name that is hashed", HASHED, {"name": "other"}),
    ("start", YEARLY, {"start_at": TOMORROW.replace(tzinfo=None) if connection.vendor == "sqlite" else TOMORROW}),
    ("number of runs", YEARLY, {"max_runs": 5}),
    ("kind", YEARLY, {"kind": "every", "cron": "", "every": 60_000_000}),
    ("summer time", YEARLY, {"dst_gap": "skip"}),
]
PLACED = [
    ("jitter", YEARLY, {"jitter": 60_000_000}),
    ("name that spreads the jitter", JITTERED, {"name": "other"}),
    ("queue", YEARLY, {"queue": "mail"}),
]


def interval(value):
    """Return a duration as the database writes it."""
    return value if connection.vendor == "sqlite" or not isinstance(value, int) else timedelta(microseconds=value)


@pytest.mark.parametrize(("values", "edit", "retimed"),
                         [(*row[1:], True) for row in RETIMED] + [(*row[1:], False) for row in PLACED],
                         ids=[row[0] for row in RETIMED + PLACED])  # fmt: skip
def test_an_edit_by_sql_becomes_a_new_version_and_is_mirrored(built, values, edit, retimed):
    row, other = schedule("a", **values), schedule("b")
    old = Schedule.objects.get(pk=row.pk)
    by_sql(row, **{name: interval(value) if name in ("every", "jitter") else value for name, value in edit.items()})
    before = list(Schedule.objects.order_by("pk").values()), view(built, row)
    dry = sync.sweep_fully(built, dry_run=True)
    assert (list(Schedule.objects.order_by("pk").values()), view(built, row)) == before, "a dry run changes nothing"
    began = utcnow()
    report = sync.sweep_fully(built)
    new = Schedule.objects.get(pk=row.pk)
    assert report.lines == [f"{new.name}: updated, SQL had edited it"]
    assert report.lines == dry.lines[:1]  # and the ghost in the old queue, where it moved
    assert new.generation > old.generation
    assert (new.effective_from > old.effective_from) == retimed
    assert not retimed or new.effective_from >= began - timedelta(milliseconds=1), "no due point in the past"
    assert mirrored(built, row)
    assert mirrored(built, other)
    assert view(built, new).score_ms == to_ms(new.recurrence.next_after(new.effective_from)) + jitter_ms(new)
    assert sync.sweep_fully(built).lines == []
    assert not Schedule.objects.unmirrored().exists()
    if "queue" in edit:
        assert absent(built, row, "default")
    assert not Tombstone.objects.exists()


def jitter_ms(row):
    point = from_ms(to_ms(row.recurrence.next_after(row.effective_from)))
    return to_ms(chain.find_wake(row, point)) - to_ms(point)


def test_a_schedule_that_sql_switches_off_leaves_redis_and_returns_after_now(built):
    row = schedule(kind="every", cron="", every=timedelta(minutes=1))
    by_sql(row, enabled=False)
    assert sync.sweep_fully(built).lines
    assert absent(built, row)
    began = utcnow()
    by_sql(row, enabled=True)
    assert sync.sweep_fully(built).lines
    assert from_ms(view(built, row).point_ms) > began
    assert not Run.objects.exists()


def test_a_point_that_was_due_when_sql_edited_its_schedule_is_not_forgotten(built):
    """Rule R8, as for an edit through Django: it runs once."""
    row = schedule()
    point = make_due(built, row)
    by_sql(row, cron=YEARLY_CRON)
    sync.sweep_fully(built)
    run_burst()
    run = Run.objects.get(status="succeeded")
    assert run.due_at == point
    assert view(built, row).point_ms == to_ms(Schedule.objects.get().recurrence.next_after(utcnow()))


def test_an_edit_by_sql_before_a_save_is_found_by_the_save(built):
    row = schedule(cron=YEARLY_CRON)
    old = Schedule.objects.get()
    by_sql(row, cron="* * * * *")
    row = Schedule.objects.get()
    row.description = "only this"
    began = utcnow()
    row.save()
    assert row.effective_from > old.effective_from
    assert mirrored(built, row)
    assert from_ms(view(built, row).point_ms) > began


# -- edits through Django


def touch(row):
    row.description += "x"
    row.save()


def load_dump(row):
    for item in serializers.deserialize("json", serializers.serialize("json", [row])):
        item.object.cron = "7 * * * *"
        item.save()


def upsert(row):
    values = {"task": row.task, "kind": "cron", "cron": "7 * * * *"}
    Schedule.objects.bulk_create(
        [Schedule(name=row.name, **values)], update_conflicts=True, unique_fields=["name"], update_fields=["cron"]
    )


EDITS = [
    ("save", lambda row: (setattr(row, "cron", "7 * * * *"), row.save())),
    ("save of something else", touch),
    ("save of all that decides where", lambda row: (setattr(row, "queue", "mail"), row.save())),
    ("save of the jitter", lambda row: (setattr(row, "jitter", timedelta(seconds=9)), row.save())),
    ("save of a name", lambda row: (setattr(row, "name", "other"), row.save())),
    ("update", lambda row: Schedule.objects.update(cron="7 * * * *", jitter=timedelta(seconds=9), queue="mail")),
    ("update of timing by an expression", lambda row: Schedule.objects.update(max_runs=F("max_attempts"))),
    ("bulk_update", lambda row: (setattr(row, "cron", "7 * * * *"), Schedule.objects.bulk_update([row], ["cron"]))),
    ("bulk_create with conflicts", upsert),
    ("loaddata", load_dump),
    ("pause", lambda row: row.pause()),
    ("pause and resume", lambda row: (row.pause(), row.resume())),
    ("run now", actions.run_now),
]


@pytest.mark.parametrize("together", [False, True], ids=["at once", "found by the delta sweep"])
@pytest.mark.parametrize("edit", [row[1] for row in EDITS], ids=[row[0] for row in EDITS])
def test_an_edit_through_django_is_none_past_it(built, monkeypatch, edit, together):
    row = schedule(name="H", cron="H * * * *")
    if together:
        monkeypatch.setattr(after_commit, "MOST_AT_ONCE", 0)
    edit(Schedule.objects.get())
    versions = list(Schedule.objects.values("generation", "effective_from"))
    if together:
        sync.sweep_delta(built)
    assert [line for line in sync.sweep_fully(built).lines if "SQL had edited it" in line] == []
    assert list(Schedule.objects.values("generation", "effective_from")) == versions
    row.refresh_from_db()
    assert not row.enabled or mirrored(built, row)


def test_runs_change_no_digest(built):
    row = schedule()
    make_due(built, row)
    sync.sweep_fully(built)
    before = ScheduleState.objects.get().mirrored_digest
    assert before
    run_burst()
    assert Run.objects.get().status == "succeeded"
    assert ScheduleState.objects.get().mirrored_digest == before
    assert sync.sweep_fully(built).lines == []


@pytest.mark.parametrize("digest", ["", "0:1:2:3", "garbage"], ids=["none", "another release's", "garbage"])
def test_a_digest_that_says_nothing_is_written_anew_and_no_edit(built, digest):
    row = schedule()
    good = ScheduleState.objects.get().mirrored_digest
    ScheduleState.objects.update(mirrored_digest=digest)
    assert sync.sweep_fully(built).lines == []
    assert ScheduleState.objects.get().mirrored_digest == good
    row.refresh_from_db()
    assert row.generation == row.synced_generation


def test_sql_that_moves_effective_from_itself_is_taken_at_its_word(built):
    """The way out for a migration that wants points of the past: it cannot be told from an edit through Django."""
    row = schedule(cron=YEARLY_CRON)
    since = utcnow() - timedelta(hours=2)
    by_sql(row, cron="0 * * * *")
    Schedule._base_manager.update(effective_from=since, created_at=since - timedelta(days=1))
    assert sync.sweep_fully(built).lines
    assert Schedule.objects.get().effective_from == since
