"""Models of a project that inherit from `Schedule`, with a table of their own or as a proxy: all that schedules do."""

from copy import copy

import pytest
from django.contrib.auth.models import User
from django.core import serializers
from django.db.models import F

from django_delayq.declared.values import values_of
from django_delayq.models import Definition, Schedule, Tombstone
from tests.faults.models import NamedSchedule, OwnedSchedule
from tests.integration.mirroring import absent, mirrored
from tests.support import DAILY_CRON

pytestmark = pytest.mark.django_db(transaction=True)

HEIRS = pytest.mark.parametrize("model", [OwnedSchedule, NamedSchedule, Schedule])


@pytest.fixture
def make(built):
    """Return what makes a schedule of a model."""

    def create(model, name="s", **values):
        values = {"name": name, "task": "tests.app.tasks.noop", "kind": "cron", "cron": DAILY_CRON, **values}
        if model is OwnedSchedule:
            values.setdefault("owner", User.objects.create_user(f"owner of {name}"))
        return model.objects.create(**values)

    return create


@HEIRS
def test_it_is_mirrored_and_versioned_at_each_write(model, make, built):
    row = model.objects.get(pk=make(model).pk)
    assert mirrored(built, row)
    row.cron = "0 5 * * *"
    row.save()
    assert mirrored(built, row)
    row.pause("holidays", by="boss")
    assert absent(built, row)
    row.resume()
    row.description = "changed"
    row.full_clean()
    row.save(update_fields=["description"])
    row.refresh_from_db()
    assert row.description == "changed"
    assert mirrored(built, row)
    kept = list(Definition.objects.filter(schedule=row.pk).order_by("pk"))
    assert [(each.values["cron"], each.values["enabled"], each.by) for each in kept] == [
        (DAILY_CRON, True, ""), ("0 5 * * *", True, "boss"), ("0 5 * * *", False, ""), ("0 5 * * *", True, ""),
    ]  # fmt: skip
    assert all(each.values.keys() == values_of(Schedule()).keys() for each in kept)
    assert values_of(row).keys() == values_of(Schedule()).keys()
    kept[0].restore()
    row.refresh_from_db()
    assert row.cron == DAILY_CRON
    assert mirrored(built, row)


@HEIRS
def test_bulk_writes_are_mirrored_and_kept(model, make, built):
    row = make(model)
    assert model.objects.filter(name="s").update(cron="0 5 * * *", queue="mail") == 1
    row.refresh_from_db()
    assert (row.cron, row.queue) == ("0 5 * * *", "mail")
    assert absent(built, row, "default")
    assert mirrored(built, row)
    before = row.effective_from
    model.objects.update(max_runs=F("max_attempts") + 1)
    row.refresh_from_db()
    assert row.effective_from > before
    kept = Definition.objects.filter(schedule=row.pk)
    assert [each.values.keys() for each in kept] == [values_of(Schedule()).keys()] * 2
    row.queue = "default"
    model.objects.bulk_update([row], ["queue"])
    assert absent(built, row, "mail")
    assert mirrored(built, row)


@HEIRS
@pytest.mark.parametrize("how", ["row", "rows", "parent", "parents"])
def test_a_deletion_is_followed_at_once(model, make, built, how):
    row, other = make(model), make(model, "other")
    row.tags.put(row, ["a"])
    row.pause()
    row.resume()
    which = Schedule if how.startswith("parent") else model
    rows = which.objects.filter(pk=row.pk)
    if how.endswith("s"):
        rows.delete()
    else:
        rows.get().delete()
    assert absent(built, row)
    assert mirrored(built, other)
    assert [Schedule.objects.get().pk, model.objects.get().pk] == [other.pk] * 2
    assert not Definition.objects.filter(schedule=row.pk).exists()
    assert not Tombstone.objects.exists()


def test_what_only_the_child_has_is_no_new_definition(make):
    row, owner = make(OwnedSchedule), User.objects.create_user("other")
    before = Schedule.objects.values().get()
    row.owner = owner
    row.save()
    row.save(update_fields=["owner"])
    OwnedSchedule.objects.update(owner=owner)
    after = Schedule.objects.values().get()
    assert OwnedSchedule.objects.get().owner == owner
    assert after == before
    assert not Definition.objects.exists()


@HEIRS
def test_a_copy_and_a_fixture_are_schedules_of_their_own(model, make, built):
    row = make(model)
    clone = copy(row)
    clone.pk = clone.id = None
    clone._state.adding, clone.name = True, "clone"
    clone.save()
    assert clone.pk != row.pk
    assert mirrored(built, clone)
    dumped = serializers.serialize("json", [Schedule.objects.get(pk=row.pk), row])
    generation = row.generation
    for deleted in (False, True):
        if deleted:
            model.objects.filter(pk=row.pk).delete()
        for each in serializers.deserialize("json", dumped):
            each.save()
        row.refresh_from_db()
        assert row.generation > generation
        assert mirrored(built, row)
