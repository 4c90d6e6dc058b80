"""Jobs in the admin: in the list of runs, on their pages, and what people can do to them."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry

from django_delayq import actions
from django_delayq.admin import base, run_actions
from django_delayq.calls import registry
from django_delayq.exceptions import JobHeld
from django_delayq.index.web import forget_broker
from django_delayq.models import Output, Run
from django_delayq.recurrence.point import utcnow
from tests.app import tasks
from tests.integration.admin_pages import HOSTILE, RUNS, chosen, client_for, make, make_job, text_of, texts
from tests.jobs.support import row
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2hunter2"
LATER = timedelta(hours=1)


@pytest.fixture(autouse=True)
def fresh(built):
    tasks.CALLS.clear()
    forget_broker()


@pytest.fixture
def viewer():
    return client_for("view_run")


@pytest.fixture
def reader():
    """A client that may see arguments, too."""
    return client_for("view_run", "view_job_arguments")


def waiting(task=tasks.add, *args, after=LATER, **options):
    return row(task.using(run_after=after, **options).enqueue(*args or (1,)))


def url(run, view="change"):
    return f"{RUNS}{run.pk}/{view}/"


def page_of(client, address, **query):
    response = client.get(address, query)
    assert response.status_code == 200, response
    return response.content.decode()


def listed(client, **query):
    response = client.get(RUNS, query)
    assert response.status_code == 200
    return [run.pk for run in response.context["cl"].result_list]


def order(client, action, *runs):
    """Order something to be done to selected rows of the list, past the page that asks; return what was said."""
    values = {"action": action, "_selected_action": [run.pk for run in runs], "apply": "yes"}
    return texts(client.post(RUNS, values, follow=True))


def labels(client, run):
    return [button["label"] for button in client.get(url(run)).context["buttons"]]


def test_jobs_and_runs_of_schedules_are_one_list_the_newest_first(viewer):
    schedule = make("nightly")
    Run.build_for(schedule, utcnow() - LATER, status="succeeded").save()
    run, died, waits = Run.objects.get(), make_job(), waiting()
    assert listed(viewer) == [waits.pk, died.pk, run.pk]
    assert listed(viewer, origin__exact="job") == [waits.pk, died.pk]
    assert listed(viewer, origin__exact="job", status__in="failed,lost") == [died.pk]
    page = page_of(viewer, RUNS)
    assert "nightly" in page and waits.result_id in page and 'title="tests.app.tasks.add"' in page
    assert re.search(r"enqueued in (1h|59m)", text_of(viewer.get(RUNS))) and "RuntimeError: no luck" in page


def test_what_is_late_says_so_and_why_it_waits(viewer):
    at = utcnow() - LATER
    for queue in ("default", "mail"):
        make_job(status="queued", due_at=at, started_at=None, queue=queue, error="")
    assert text_of(viewer.get(RUNS)).count("overdue") == 2
    actions.pause("mail", reason="smtp down", by="ann")
    text = text_of(viewer.get(RUNS))
    assert text.count("overdue") == 1 and text.count("waits: queue mail is paused (smtp down) by ann") == 1


@pytest.mark.parametrize("long", [False, True])
def test_a_job_is_found_by_its_id_and_its_task(viewer, monkeypatch, long):
    schedule = make("note it", task="tests.app.tasks.fail")
    Run.build_for(schedule, utcnow(), status="succeeded").save()
    one, other = make_job(), make_job(task="tests.app.tasks.note")
    if long:
        monkeypatch.setattr(base, "MOST_COUNTED", 2)
    assert listed(viewer, q=f" {one.result_id} ") == [one.pk]
    assert listed(viewer, q=f"{one.pk}-{other.token}") == []
    assert listed(viewer, q="tasks.note") == [other.pk]
    assert len(listed(viewer, q="note")) == 2, "and the schedule"


def test_arguments_are_for_users_who_may_see_them_and_without_secrets(viewer, reader):
    job = waiting(tasks.say, "hello")
    Run.objects.update(call={"args": ["hello"], "kwargs": {"password": SECRET}})
    for client, sees in ((viewer, False), (reader, True), (client_for("change_run"), True)):
        for page in (page_of(client, RUNS), page_of(client, url(job))):
            assert ("hello" in page) is sees and SECRET not in page
    for lookup in ("call__args__0", "call__kwargs__password__startswith", "options__unique_key"):
        assert reader.get(RUNS, {lookup: "h"}).status_code == 400


def test_a_job_is_shown_whole_and_without_its_secrets(reader, monkeypatch):
    known = registry.find_parameters(tasks.note.module_path)
    named = [item.replace(name="api_key") if item.name == "text" else item for item in known]
    monkeypatch.setattr(registry, "find_parameters", lambda path: named)
    error = f"Traceback\nRuntimeError: {SECRET} refused, password=x{SECRET}, {HOSTILE}"
    job = make_job(HOSTILE, SECRET, task="tests.app.tasks.note", error=error, priority=9, kwargs={"seconds": 1.5})
    Output.objects.create(run=job, attempt=1, text=f"{HOSTILE} was said")
    page = page_of(reader, url(job))
    for text in ("tests.app.tasks.note", job.result_id, ">9<", "1.5", "w-1", "refused", "was said"):
        assert text in page, text
    listed = page_of(reader, RUNS)
    for shown in (page, listed):
        assert SECRET not in shown and HOSTILE not in shown and "&lt;script&gt;" in shown and "RuntimeError" in shown
    assert "/why/" not in page and "schedule__id__exact" not in page


def test_what_a_job_says_of_its_attempts_its_key_and_what_follows_stands_on_its_page(reader):
    said = {"max_attempts": 3, "unique_key": "k", "on_failure": "tests.jobs.tasks.heard"}
    job = row(tasks.noop.using(run_after=LATER, **said).enqueue())
    page = page_of(reader, url(job))
    assert "max_attempts 3, on_failure tests.jobs.tasks.heard" in page and "held until it starts" in page
    until_end = row(tasks.noop.using(run_after=LATER, unique_key="e", unique_until="end").enqueue())
    assert "held until it has ended" in page_of(reader, url(until_end))
    assert run_actions.cancel(until_end, "")
    assert "no longer held" in page_of(reader, url(until_end))


def test_a_job_that_succeeded_shows_its_result_and_until_when_it_is_kept(viewer):
    result = tasks.add.enqueue(41)
    run_burst()
    page = page_of(viewer, url(row(result)))
    assert "succeeded" in page and ">42<" in page
    assert f"{row(result).expires_at:%Y-%m-%d %H:%M}" in page and labels(viewer, row(result)) == []


def test_all_attempts_are_shown_also_those_of_before_it_was_retried(boss, tmp_path):
    result = tasks.flaky.using(max_attempts=2, backoff=0.001).enqueue(str(tmp_path / "tries"), 9)
    run_burst()
    assert order(boss, "retry", row(result)) == ["1 job is queued again."]
    run_burst()
    page = page_of(boss, url(row(result)))
    table = page[page.index("delayq-attempts") :].partition("</table>")[0]
    places = [table.index(f"attempt {number} fails") for number in (1, 2, 3, 4)]
    assert places == sorted(places) and table.count("<tr>") == 5


def test_a_run_leads_to_the_job_that_it_was_handed_over_as(broker, viewer):
    make_due(broker, make("handed", task="tests.app.tasks.add", args=[1], backend="default"))
    run_burst()
    run = Run.objects.get(origin="due")
    job = Run.objects.get(origin="job")
    assert f'href="{url(job)}"' in page_of(viewer, url(run))


@pytest.mark.parametrize(("values", "wanted"), [
    ({"status": "queued", "due_at": utcnow() + LATER}, ["Run now", "Cancel job"]),
    ({"status": "queued"}, ["Cancel job"]), ({"status": "retrying"}, ["Cancel job"]), ({"status": "running"}, ["Stop"]),
    ({"status": "failed"}, ["Retry", "Delete"]), ({"status": "lost"}, ["Retry", "Delete"]),
    ({"status": "succeeded"}, []),
])  # fmt: skip
def test_the_buttons_are_those_of_the_status_and_the_permissions(boss, viewer, values, wanted):
    job = make_job(**values)
    assert labels(boss, job) == wanted
    assert labels(viewer, job) == [] and viewer.get(RUNS).context["action_form"] is None
    run = Run.build_for(make(), values.pop("due_at", utcnow()), **values)
    run.save()
    assert labels(boss, run) == [label for label in wanted if label == "Stop"], "the rest is for jobs"


def test_each_button_asks_first_and_then_does_it(boss):
    cancelled, hurried, retried, deleted = waiting(tasks.add, 1), waiting(tasks.add, 2), make_job(3), make_job(4)
    Output.objects.create(run=deleted, attempt=1, text="x")
    before = list(Run.objects.order_by("pk").values())
    for job, name in ((cancelled, "cancel"), (hurried, "run-now"), (retried, "retry"), (deleted, "delete")):
        assert job.result_id in page_of(boss, url(job, name))
    assert list(Run.objects.order_by("pk").values()) == before
    assert texts(boss.post(url(cancelled, "cancel"), follow=True)) == ["1 job is cancelled."]
    assert texts(boss.post(url(hurried, "run-now"), follow=True)) == ["1 job waits for a worker now."]
    assert texts(boss.post(url(retried, "retry"), follow=True)) == ["1 job is queued again."]
    done = boss.post(url(deleted, "delete"), follow=True)
    assert texts(done) == ["1 job is deleted."] and done.redirect_chain[-1][0] == RUNS
    run_burst()
    assert sorted(tasks.CALLS) == [(2, 1), (3, 1)] and not Output.objects.exists()
    statuses = dict(Run.objects.values_list("pk", "status"))
    assert statuses == {cancelled.pk: "failed", hurried.pk: "succeeded", retried.pk: "succeeded"}
    told = {(int(entry.object_id), entry.action_flag) for entry in LogEntry.objects.all()}
    assert told == {(cancelled.pk, CHANGE), (hurried.pk, CHANGE), (retried.pk, CHANGE), (deleted.pk, DELETION)}


def test_an_action_of_the_list_asks_first_and_says_what_became_of_each(boss, monkeypatch):
    made, ended, gone = [waiting(tasks.add, n) for n in range(3)], make_job(), waiting()
    held = waiting()
    selected = [*made, ended, gone, held]
    asked = boss.post(RUNS, {"action": "cancel", "_selected_action": [run.pk for run in selected], "index": "0"})
    page = asked.content.decode()
    assert len(asked.context["names"]) == 6 and all(run.result_id in page for run in selected)
    assert Run.objects.filter(status="queued").count() == 5, "nothing was done yet"
    gone.delete()
    cancel = run_actions.store.cancel

    def cancels(job, seconds):
        if job.pk == held.pk:
            raise JobHeld("x")
        return cancel(job, seconds)

    monkeypatch.setattr(run_actions.store, "cancel", cancels)
    assert sorted(texts(boss.post(RUNS, chosen(asked), follow=True))) == [
        "1 job does not change: a worker has it.",
        "1 run does not change: its state does not permit this.",
        "3 jobs are cancelled.",
    ]
    assert LogEntry.objects.count() == 3


def test_what_is_changed_at_once_is_bounded(boss, monkeypatch):
    monkeypatch.setattr(run_actions, "MOST_AT_ONCE", 2)
    jobs = [make_job() for _ in range(3)]
    assert "At most 2 runs" in order(boss, "delete", *jobs)[0]
    everything = {"action": "delete", "select_across": "1", "_selected_action": [jobs[0].pk], "apply": "1"}
    assert "At most 2 runs" in texts(boss.post(RUNS, everything, follow=True))[0]
    assert Run.objects.count() == 3


def test_a_job_whose_key_another_one_has_is_told_so_by_name(boss):
    first = row(tasks.noop.using(run_after=LATER, unique_key="k").enqueue())
    run_actions.cancel(first, "")
    second = row(tasks.noop.using(run_after=LATER, unique_key="k").enqueue())
    (told,) = order(boss, "retry", first)
    assert f"the job {second.result_id} has its unique key" in told and not LogEntry.objects.exists()


def test_without_redis_failed_jobs_are_retried_and_deleted_and_nothing_else_is_changed(boss, dead_redis):
    at = utcnow() + LATER
    waits = [make_job(status="queued", due_at=at, started_at=None) for _ in range(2)]
    retried, deleted = make_job(), make_job()
    for action in ("cancel", "run_now"):
        forget_broker()
        assert "Redis does not answer, so 2 jobs do not change." in order(boss, action, *waits)[0]
    assert set(Run.objects.filter(status="queued").values_list("due_at", flat=True)) == {at}
    assert order(boss, "retry", retried) == ["1 job is queued again."]
    assert order(boss, "delete", deleted) == ["1 job is deleted."]
