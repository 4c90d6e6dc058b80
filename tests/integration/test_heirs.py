"""Models of a project that inherit from `Schedule`, with a table of their own or as a proxy: all that schedules do."""

from copy import copy
from datetime import timedelta

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core import serializers
from django.db.models import F
from django.urls import path

from django_delayq import actions
from django_delayq.admin.schedules import ScheduleAdmin
from django_delayq.models import Definition, Run, Schedule, Tombstone
from django_delayq.models.columns import get_values
from django_delayq.recurrence.point import utcnow
from django_delayq.testing import Runner
from tests.faults.models import NamedSchedule, OwnedSchedule
from tests.integration.admin_pages import client_for, fields
from tests.integration.mirroring import absent, mirrored
from tests.support import DAILY_CRON

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

HEIRS = pytest.mark.parametrize("model", [OwnedSchedule, NamedSchedule, Schedule])


class HeirAdmin(ScheduleAdmin):
    fieldsets = (("Owner", {"fields": ("owner",)}), *ScheduleAdmin.fieldsets)


site = admin.AdminSite()
for known, shown in admin.site._registry.items():
    site.register(known, type(shown))
site.register(OwnedSchedule, HeirAdmin)
site.register(NamedSchedule, ScheduleAdmin)
urlpatterns = [path("admin/", site.urls)]


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
    assert all(each.values.keys() == get_values(Schedule()).keys() for each in kept)
    assert get_values(row).keys() == get_values(Schedule()).keys()
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
    assert [each.values.keys() for each in kept] == [get_values(Schedule()).keys()] * 2
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


def test_what_only_the_child_has_can_go_and_leave_the_schedule(make, built):
    row = make(OwnedSchedule)
    row.tags.put(row, ["a"])
    row.pause()
    row.resume()
    row.delete(keep_parents=True)
    left = Schedule.objects.get()
    assert mirrored(built, left)
    assert (left.tags.count(), Definition.objects.count()) == (1, 2)


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


@HEIRS
def test_it_runs_when_due_when_ordered_and_for_the_past(model, make):
    at = utcnow().replace(microsecond=0)
    with Runner(now=at) as runner:
        row = make(model, cron="* * * * *")
        actions.run_now(row)
        assert len(actions.backfill(row, at - timedelta(minutes=3), at - timedelta(minutes=1))) in (2, 3)
        runner.run_due(at + timedelta(minutes=2))
        assert Run.objects.filter(schedule=row.pk, status="succeeded").count() >= 4


@pytest.mark.parametrize("model", [OwnedSchedule, NamedSchedule])
def test_its_admin_page_edits_pauses_and_restores(model, make, built):
    row, boss = make(model), client_for(superuser=True)
    place = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    values = {"owner": str(row.owner_id)} if model is OwnedSchedule else {}
    page = boss.get(f"{place}{row.pk}/change/")
    assert f"/{row.pk}/pause/" in page.content.decode()
    answer = boss.post(f"{place}{row.pk}/change/", fields(cron="0 5 * * *", tags="a", **values))
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    row.refresh_from_db()
    assert (row.cron, [tag.name for tag in row.tags.all()]) == ("0 5 * * *", ["a"])
    assert mirrored(built, row)
    for name in ("run-now", "pause", "resume", "backfill", "why"):
        assert boss.get(f"{place}{row.pk}/{name}/").status_code == 200, name
    assert boss.post(f"{place}{row.pk}/pause/", {"reason": ""}).status_code == 302
    assert boss.post(f"{place}{row.pk}/resume/").status_code == 302
    assert boss.post(f"{place}{row.pk}/run-now/").status_code == 302
    history = boss.get(f"{place}{row.pk}/history/").content.decode()
    assert "Paused" in history
    kept = Definition.objects.earliest("pk")
    asked = {"definition": kept.pk, "seen": Schedule.objects.get().generation}
    assert boss.get(f"{place}{row.pk}/restore/", asked).status_code == 200
    assert boss.post(f"{place}{row.pk}/restore/", asked).status_code == 302
    row.refresh_from_db()
    assert row.cron == DAILY_CRON
    added = boss.post(f"{place}add/", fields(name="added", **values))
    assert added.status_code == 302, added.context["adminform"].form.errors
    assert boss.get(place).status_code == 200
    chosen = {"action": "pause", "apply": "1", "reason": "", "_selected_action": [row.pk]}
    assert boss.post(place, chosen).status_code == 302
    assert not Schedule.objects.get(pk=row.pk).enabled
    assert boss.post(f"{place}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert absent(built, row)
