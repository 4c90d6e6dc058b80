"""A replica that stands still: nothing that it says reaches a form, a check or a worker."""

from datetime import timedelta

import pytest

from django_delayq import actions
from django_delayq.models import Run, Schedule, ScheduleState
from tests.integration.admin_pages import change_url, errors, fields
from tests.integration.mirroring import schedule
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "schedules", "replica"])


def replicate():
    """Copy all rows to the replica, as they are now."""
    for model in (Schedule, ScheduleState, Run):
        model._base_manager.using("replica").all().delete()
        for row in model._base_manager.using("schedules").all():
            model.save_base(row, raw=True, using="replica", force_insert=True)


def test_what_the_replica_still_has_is_neither_shown_nor_saved_nor_run(broker, boss):
    row = schedule(cron=DAILY_CRON, description="old words")
    replicate()
    Schedule.objects.filter(pk=row.pk).update(description="new words", task="tests.app.tasks.add", args=[1])
    page = boss.get(change_url(row)).content.decode()
    assert "new words" in page
    assert "old words" not in page
    assert Schedule.objects.defer("description").get().description == "new words"
    form = fields(cron="5 * * * *", seen=str(row.generation))
    assert "Another user changed this schedule" in str(errors(boss.post(change_url(row), form)))
    make_due(broker, row)
    run_burst()
    assert Run.objects.get().task == "tests.app.tasks.add"
    assert not Run.objects.using("replica").exists()


def test_a_state_comes_from_the_primary_also_where_the_schedule_was_read_alone(broker):
    row = schedule(cron="", kind="every", every=timedelta(hours=1), max_runs=3)
    replicate()
    make_due(broker, row)
    run_burst()
    alone = Schedule.objects.get()
    assert alone.state.run_count == 1
    assert sum(point.runs for point in alone.preview(9)) == 2, "of three runs one is over"


def test_a_row_of_the_replica_can_be_read_by_name_and_its_edit_goes_to_the_primary(broker):
    row = schedule()
    replicate()
    lagging = Schedule.objects.using("replica").get()
    assert lagging.preview(1)
    lagging.pause("by a stale instance")
    assert not Schedule.objects.get().enabled
    assert Schedule.objects.using("replica").get().enabled
    actions.run_now(lagging)
    run_burst()
    assert Run.objects.get().schedule_id == row.pk
