"""The admin with the app in another database than the accounts. A read of the replica is an error in these tests."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_delayq.models import Run, Schedule, Tombstone
from tests.integration.admin_pages import ADD, LIST, change_url, errors, fields, make, texts
from tests.integration.mirroring import absent, mirrored
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "schedules"])
RUNS = "/admin/django_delayq/run/"


def posted(client, url, data=None):
    response = client.post(url, data or {}, follow=True)
    assert response.status_code == 200, url
    return response


def test_what_is_added_edited_and_deleted_in_the_admin_is_there_at_once_and_redis_follows(broker, boss):
    response = posted(boss, ADD, fields())
    assert not any("not in Redis yet" in text for text in texts(response))
    row = Schedule.objects.get()
    assert row._state.db == "schedules"
    assert mirrored(broker, row)
    assert b"0 9 * * *" in boss.get(change_url(row)).content
    response = posted(boss, change_url(row), fields(cron="7 * * * *", seen=str(row.generation)))
    assert not any("not in Redis yet" in text for text in texts(response))
    assert mirrored(broker, Schedule.objects.get(cron="7 * * * *"))
    posted(boss, f"{LIST}{row.pk}/delete/", {"post": "yes"})
    assert absent(broker, row)
    assert not Tombstone.objects.exists()


def test_a_name_that_was_taken_a_moment_ago_is_a_message_and_not_an_error(boss):
    make("s")
    assert "name" in errors(boss.post(ADD, fields(name="s")))


@pytest.mark.parametrize(
    "query", ["", "?state=enabled", "?kind__exact=cron", "?outcome=none", "?queue=default", "?q=s"]
)
def test_the_list_and_its_filters_show_the_primary(boss, query):
    make("shown here")
    assert b"shown here" in boss.get(LIST + query.replace("q=s", "q=shown")).content


def test_buttons_and_actions_change_the_primary(broker, boss):
    row = make(cron=DAILY_CRON)
    url = f"{LIST}{row.pk}"
    assert any("“s” runs once more" in text for text in texts(posted(boss, f"{url}/run-now/")))
    posted(boss, f"{url}/pause/", {"reason": "stocktaking"})
    assert b"stocktaking" in boss.get(LIST).content
    posted(boss, f"{url}/resume/")
    assert Schedule.objects.get().enabled
    for action in ("run_now", "resume", "pause"):
        posted(boss, LIST, {"action": action, "_selected_action": row.pk, "apply": "1", "reason": "all"})
    assert not Schedule.objects.get().enabled
    assert boss.post(f"{url}/preview/", fields()).json()["upcoming"]
    assert Run.objects.filter(origin="manual").count() == 2
    assert boss.get(f"{url}/history/").status_code == 200
    posted(boss, LIST, {"action": "delete_selected", "_selected_action": row.pk, "post": "yes"})
    assert not Schedule.objects.exists()


def test_a_backfill_is_ordered_and_run(broker, boss):
    row = make(cron="0 * * * *")
    now = timezone.now()
    start, end = now - timedelta(hours=3), now - timedelta(minutes=1)
    words = {
        "start_0": f"{start:%Y-%m-%d}", "start_1": f"{start:%H:%M:%S}",
        "end_0": f"{end:%Y-%m-%d}", "end_1": f"{end:%H:%M:%S}",
    }  # fmt: skip
    assert boss.get(f"{LIST}{row.pk}/backfill/", words).status_code == 200
    posted(boss, f"{LIST}{row.pk}/backfill/", words)
    run_burst()
    assert Run.objects.filter(origin="backfill", status="succeeded").count() in (2, 3)


def test_the_pages_of_the_ledger_show_what_ran_a_moment_ago(broker, boss):
    row = make(cron=DAILY_CRON)
    make_due(broker, row)
    run_burst()
    run = Run.objects.get()
    assert run.status == "succeeded"
    assert b"succeeded" in boss.get(RUNS).content
    assert b"succeeded" in boss.get(f"{RUNS}?schedule__id__exact={row.pk}").content
    assert f"/schedule/{row.pk}/change/" in boss.get(f"{RUNS}{run.pk}/change/").content.decode()
    assert f"{RUNS}{run.pk}/" in boss.get(change_url(row)).content.decode()
