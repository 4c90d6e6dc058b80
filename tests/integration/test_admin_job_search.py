"""Jobs in the admin that have succeeded; a search by task and error; arguments for whoever may see them."""

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_delayq.backend import listing
from django_delayq.backend.listing import JobState
from django_delayq.broker import jobs
from django_delayq.broker.web import forget_broker
from django_delayq.fields import utcnow
from django_delayq.models import Job, Run
from tests.app import tasks
from tests.integration.admin_pages import client_for, make
from tests.integration.job_pages import JOBS, build, dead, ready, where
from tests.jobs.durable_support import durable
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def built(broker):
    build(broker)
    forget_broker()


@pytest.fixture
def viewer():
    return client_for("view_redisjob")


def listed(client, **asked):
    """Return the list of a page, and its text."""
    page = client.get(JOBS, asked)
    assert page.status_code == 200
    return page.context["cl"], page.content.decode()


def page_of(wanted):
    return reverse("admin:django_delayq_redisjob_change", args=[quote(wanted)])


def ids(client, **asked):
    return [row.id for row in listed(client, **asked)[0].result_list]


def test_what_succeeded_is_listed_as_long_as_its_result_is_kept(viewer, broker):
    plain, kept = tasks.add.enqueue(1), durable(tasks.add).enqueue(2)
    stored, failed = tasks.add.using(backend="stored").enqueue(3), tasks.fail.enqueue()
    run_burst(threads=1)
    assert sorted(ids(viewer, state="ended")) == sorted([plain.id, kept.id, stored.id])
    assert failed.id in ids(viewer, state="dead")
    jobs_of, shard, member = where(broker, plain.id)
    assert broker.client.delete(jobs_of._result(shard, member))
    Job.objects.update(expires_at=utcnow())
    assert ids(viewer, state="ended") == []


def test_without_redis_those_of_the_database_are_listed(viewer, broker, settings):
    kept = durable(tasks.add).enqueue(2)
    run_burst()
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    assert ids(viewer, state="ended") == [kept.id]


def test_the_newest_of_a_shard_are_listed_page_by_page(viewer, broker, monkeypatch):
    monkeypatch.setattr(jobs, "DONE_MOST", 60)
    enqueued = []
    for _ in range(3):
        enqueued += [tasks.noop.enqueue().id for _ in range(30)]
        run_burst()
    shards = listing.shards_of(broker, ["default"])
    found, after = [], ""
    while True:
        page = listing.list_jobs(broker, shards, JobState.ENDED, size=25, after=after)
        found += [seen.result_id for seen in page.jobs]
        after = page.after
        if not after:
            break
    assert [*map(set, (found[:30], found[30:]))] == [set(enqueued[60:]), set(enqueued[30:60])]


def test_a_task_or_an_error_is_looked_for_and_the_page_says_in_how_many(viewer, broker, monkeypatch):
    other, wanted = ready(), tasks.noop.enqueue().id
    assert ids(viewer, state="ready", q="NOOP") == [wanted]
    assert ids(viewer, state="ready", q="tests.app") == [other, wanted]
    died = dead(broker, error="Traceback\nValueError: password=swordfish no luck\n")
    dead(broker, error=f"Traceback\nKeyError: password=swordfish {'x' * 1988}")
    assert ids(viewer, state="dead", q="no luck") == [died]
    assert ids(viewer, state="dead", q="swordfish") == []
    assert "2 jobs were looked through, 0 found." in listed(viewer, state="dead", q="nothing such")[1]


def test_a_search_through_many_ends_and_looks_on_from_there(viewer, broker, monkeypatch):
    monkeypatch.setattr(listing, "MOST_SEARCHED", 20)
    monkeypatch.setattr(listing, "SEARCH_PAGE", 10)
    for _ in range(30):
        tasks.add.enqueue(1)
    wanted = tasks.noop.enqueue().id
    found, page = listed(viewer, state="ready", q="noop")
    assert found.listing.looked == 20 and not found.result_list and "looks on from there" in page
    response = viewer.get(JOBS + found.next_page)
    assert [row.id for row in response.context["cl"].result_list] == [wanted]


def test_arguments_are_for_whoever_may_see_them_and_without_secrets(viewer, broker):
    wanted = tasks.say.enqueue("hello", password="open sesame").id
    for client, sees in ((viewer, False), (client_for("view_redisjob", "view_job_arguments"), True)):
        for text in (
            listed(client, state="ready")[1],
            client.get(page_of(wanted)).content.decode(),
        ):
            assert ("hello" in text) is sees and "open sesame" not in text
    assert "hello" in listed(client_for("view_redisjob", "change_redisjob"), state="ready")[1]


def test_a_job_is_found_by_its_arguments_by_whoever_may_see_them_and_by_no_secret(viewer, broker):
    tasks.add.enqueue(1)
    wanted = tasks.say.enqueue("invoice 4711", password="open sesame").id
    reader = client_for("view_redisjob", "view_job_arguments")
    assert ids(reader, state="ready", q="INVOICE 47") == [wanted]
    assert "Task, error or argument" in listed(reader, state="ready")[1]
    assert ids(viewer, state="ready", q="invoice 47") == ids(reader, state="ready", q="sesame") == []
    assert "argument" not in listed(viewer, state="ready")[1].split("<main")[-1]


def test_a_run_and_the_job_that_it_was_handed_over_as_lead_to_each_other(broker):
    schedule = make("handed", task="tests.app.tasks.add", args=[1], backend="default")
    make_due(broker, schedule)
    run_burst()
    run = Run.objects.get()
    wanted = run.result["result_id"]
    client = client_for("view_redisjob", "view_run")
    page = client.get(f"/admin/django_delayq/run/{run.pk}/change/").content.decode()
    there = page_of(wanted)
    assert f'href="{there}"' in page
    assert f'href="/admin/django_delayq/run/{run.pk}/change/"' in client.get(there).content.decode()
    other = tasks.add.enqueue(1).id
    assert "/run/" not in client.get(page_of(other)).content.decode().split("<main")[-1]
    assert there not in client_for("view_run").get(f"/admin/django_delayq/run/{run.pk}/change/").content.decode()
