"""Declared schedules where the app is in a database of its own, with a replica that nobody may ask."""

import pytest
from django.core.management import call_command

from django_delayq.models import Schedule
from django_delayq.sources import declared
from tests.declaring import declaring
from tests.integration.admin_pages import LIST, change_url
from tests.integration.mirroring import mirrored

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "schedules"])


@pytest.fixture
def code():
    with declaring() as one:
        yield one


def test_a_sync_and_the_admin_stay_on_the_primary(code, boss, broker):
    code.says("periodic('0 9 * * *', name='s')(noop)")
    declared.sync()
    row = Schedule.objects.get()
    assert mirrored(broker, row)
    row.cron = "0 8 * * *"
    row.save()
    code.says("periodic('0 10 * * *', name='s', max_attempts=2)(noop)")
    call_command("delayq_sync", verbosity=0)
    assert (Schedule.objects.get().cron, Schedule.objects.get().max_attempts) == ("0 10 * * *", 2)
    assert "in the code" in boss.get(LIST).content.decode()
    assert "owns all fields except enabled, its reason and the tags" in boss.get(change_url(row)).content.decode()
    code.says()
    declared.sync()
    assert not Schedule.objects.get().enabled
    assert boss.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Schedule.objects.exists()


def test_only_the_migration_of_the_database_with_the_schedules_syncs(code, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SYNC_AFTER_MIGRATE": True}
    code.says("periodic('0 9 * * *', name='s')(noop)")
    call_command("migrate", database="default", verbosity=0)
    assert not Schedule.objects.exists()
    call_command("migrate", database="schedules", verbosity=0)
    assert Schedule.objects.get().name == "s"
