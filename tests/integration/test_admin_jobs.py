"""Jobs in the admin: what the pages show, what the buttons do and say, and what happens where Redis is away."""

import json
import re
from dataclasses import replace
from urllib.parse import urlencode

import pytest
import redis
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote
from django.core import serializers
from django.core.management import call_command
from django.urls import reverse
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_delayq import registry
from django_delayq.admin import job_actions
from django_delayq.backend import operating
from django_delayq.broker import Broker, keys
from django_delayq.broker.web import forget_broker
from django_delayq.compat import TaskResultStatus
from django_delayq.models import RedisJob
from tests.app import tasks
from tests.integration.admin_pages import HOSTILE, client_for, texts
from tests.integration.job_pages import (
    JOBS,
    LATER,
    build,
    claim,
    counts,
    dead,
    forge,
    kill,
    ready,
    status_of,
    waiting,
    where,
)
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2hunter2"


@pytest.fixture(autouse=True)
def built(broker):
    tasks.CALLS.clear()
    build(broker)
    forget_broker()


@pytest.fixture
def viewer():
    """A client that may only see."""
    return client_for("view_redisjob", "view_job_arguments")


def url(wanted, view="change"):
    return f"{JOBS}{quote(wanted)}/{view}/"


def page_of(client, address, **query):
    response = client.get(address, query)
    assert response.status_code == 200, response
    return response.content.decode()


def rows(client, **query):
    response = client.get(JOBS, query)
    assert response.status_code == 200
    return [row.id for row in response.context["cl"].result_list]


def order(client, state, action, *chosen):
    """Order something to be done to selected jobs of the list, past the page that asks; return what was said."""
    address = f"{JOBS}?{urlencode({'state': state})}"
    values = {"action": action, "_selected_action": chosen, "apply": "yes"}
    return texts(client.post(address, values, follow=True))


# -- the list


def test_the_app_lists_jobs_for_those_who_may_see_them(boss, viewer):
    for client in (boss, viewer):
        assert JOBS in page_of(client, "/admin/")
    assert JOBS not in page_of(client_for("view_schedule"), "/admin/")
    assert client_for("view_schedule", "view_run").get(JOBS).status_code == 403


def test_each_state_has_a_list_and_a_number(viewer, broker):
    gone, held = dead(broker), ready()
    claim(broker, held)
    later, turn = waiting(), ready()
    for state, wanted in (("waiting", later), ("ready", turn), ("running", held), ("dead", gone), ("nonsense", later)):
        assert rows(viewer, state=state) == [wanted], state
    page = viewer.get(JOBS)
    assert [(tab["label"], tab["count"], tab["current"]) for tab in page.context["cl"].tabs] == [
        ("waiting", 1, True), ("ready", 1, False), ("running", 1, False), ("dead", 1, False),
        ("succeeded", None, False),
    ]  # fmt: skip


def test_the_list_tells_what_matters_in_its_state(viewer, broker):
    gone = dead(broker, tasks.fail, "x", error="Traceback\n  File x\nValueError: the last line\n\n", attempts=2)
    held = ready()
    claim(broker, held)
    waiting(after=LATER * 1.5, priority=3)
    page = page_of(viewer, JOBS)
    assert re.search("in 1h (29|30)m", page) and ">3<" in page and "tests.app.tasks.add" in page
    page = page_of(viewer, JOBS, state="running")
    assert ">test<" in page and held in page
    page = page_of(viewer, JOBS, state="dead")
    assert "ValueError: the last line" in page and "Traceback" not in page and ">2<" in page
    assert url(gone) in page


def test_what_is_late_is_marked(viewer, broker):
    one = waiting()
    _, place, member = where(broker, one)
    names = keys.all_keys(broker.config.prefix, place)
    assert "overdue" not in page_of(viewer, JOBS)
    broker.client.zadd(names["jobs"], {member: broker.now_ms() - 60_000})
    assert "overdue" in page_of(viewer, JOBS)
    held = ready()
    claim(broker, held)
    assert "lease ended" not in page_of(viewer, JOBS, state="running")
    broker.client.zadd(names["jobs"], {where(broker, held)[2]: broker.now_ms() - 1000})
    assert "lease ended" in page_of(viewer, JOBS, state="running")


def test_the_list_is_filtered_by_queue(viewer):
    here, there = waiting(), waiting(queue="mail")
    assert rows(viewer, queue="mail") == [there]
    assert set(rows(viewer)) == {here, there} == set(rows(viewer, queue="unknown"))
    page = viewer.get(JOBS, {"queue": "mail"})
    assert page.context["cl"].tabs[0]["count"] == 1
    assert page.context["cl"].tabs[3]["address"] == "?queue=mail&state=dead"
    assert "?queue=default&amp;state=dead" in page_of(viewer, JOBS, queue="mail", state="dead", after="1.0~mail:0~3")


@pytest.mark.parametrize("state", ["waiting", "ready", "running", "dead"])
def test_the_list_is_paged(viewer, broker, state):
    made = [waiting(n, after=LATER * (n + 1)) if state == "waiting" else ready(n) for n in range(120)]
    if state in ("running", "dead"):
        holder = claim(broker, made[0])
        for wanted in made if state == "dead" else ():
            kill(broker, wanted, holder)
    found, address, sizes = [], f"{JOBS}?state={state}", []
    while address:
        page = viewer.get(address)
        listing = page.context["cl"]
        found += [row.id for row in listing.result_list]
        sizes.append(len(listing.result_list))
        assert len(sizes) < 10, "it comes to an end"
        assert bool(listing.first_page) == (len(sizes) > 1)
        address = JOBS + listing.next_page if listing.next_page else ""
    assert sizes == [50, 50, 20]
    assert len(found) == 120 and set(found) == set(made)
    if state == "waiting":
        assert found == made


def test_a_list_costs_the_same_however_many_jobs_there_are(viewer, broker):
    """Counted in what Redis answers."""

    def cost():
        page_of(viewer, JOBS)  # connects
        before = sent()
        page_of(viewer, JOBS)
        return sent() - before

    def sent():
        return sum(stats["total_net_output_bytes"] for stats in broker.info("stats"))

    tasks.add.using(run_after=LATER).enqueue_many(((n,), {}) for n in range(100))
    few = cost()
    tasks.add.using(run_after=LATER).enqueue_many(((n,), {}) for n in range(3000))
    assert cost() < few * 1.2 + 2000


@pytest.mark.parametrize("query", [
    {"after": "nonsense"}, {"after": "inf~default:0~1", "state": "dead"}, {"after": "99999999", "state": "running"},
    {"after": "-1", "state": "running"}, {"p": "7"}, {"o": "1"}, {"all": ""}, {"q": "x"}, {"state": "ended"},
])  # fmt: skip
def test_nonsense_in_the_address_is_no_error(viewer, query):
    waiting()
    assert viewer.get(JOBS, query, follow=True).status_code == 200


def test_a_job_is_found_by_its_id(viewer):
    wanted = waiting()
    assert viewer.get(JOBS, {"id": f" {wanted} "})["Location"] == url(wanted)
    assert "no id of a job" in texts(viewer.get(JOBS, {"id": "nonsense"}, follow=True))[0]


# -- one job


def test_a_job_is_shown_whole_and_without_its_secrets(viewer, broker):
    error = f"Traceback\nRuntimeError: {SECRET} refused, password={SECRET}x, {HOSTILE}"
    wanted = dead(broker, tasks.note.using(priority=9), HOSTILE, error=error, text=SECRET, seconds=1.5)
    page = page_of(viewer, url(wanted))
    assert "tests.app.tasks.note" in page and wanted in page and "dead" in page
    assert "&lt;script&gt;" in page and HOSTILE not in page
    assert ">9<" in page and "1.5" in page and "w-1" in page and "builtins.RuntimeError" in page
    assert f"{SECRET}x" not in page and "password=********" in page


@pytest.fixture
def secretive(monkeypatch):
    """Let `note` take its second argument for a secret."""
    known = registry.parameters_of(tasks.note.module_path)
    named = [item.replace(name="api_key") if item.name == "text" else item for item in known]
    monkeypatch.setattr(registry, "parameters_of", lambda path: named)


def test_secret_arguments_are_hidden_also_in_errors(boss, broker, secretive):
    wanted = dead(broker, tasks.note, "/path", SECRET, error=f"RuntimeError: {SECRET} is wrong")
    for page in (page_of(boss, url(wanted)), page_of(boss, JOBS, state="dead")):
        assert SECRET not in page
        assert "is wrong" in page
    assert "/path" in page_of(boss, url(wanted))


def test_positional_arguments_of_an_unknown_task_are_hidden(boss, monkeypatch):
    wanted = tasks.note.using(run_after=LATER).enqueue(SECRET, text="shown").id
    monkeypatch.setattr(registry, "_tasks", {})
    page = page_of(boss, url(wanted))
    assert SECRET not in page and "shown" in page


def test_what_is_not_signed_is_not_shown(boss, broker):
    for wanted, state in ((waiting(), "waiting"), (dead(broker), "dead")):
        forge(broker, wanted, f'{"x" * 43}\n{{"task":"{SECRET}"}}')
        for page in (page_of(boss, url(wanted)), page_of(boss, JOBS, state=state)):
            assert "not signed for this queue with this project&#x27;s key" in page.replace("&#39;", "&#x27;")
            assert SECRET not in page
    labels = [button["label"] for button in boss.get(url(wanted)).context["orders"]]
    assert labels == ["Delete"], "a retry would sign it"


def test_a_job_that_has_ended_is_shown_while_its_result_stands(viewer):
    wanted = ready(41)
    run_burst()
    page = page_of(viewer, url(wanted))
    assert "successful" in page and ">42<" in page
    assert viewer.get(url(wanted)).context["orders"] == []


def test_a_result_that_was_too_large_is_shown_as_that(viewer, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RESULT_BYTES": 1024}
    wanted = ready(10**1025)
    run_burst()
    page = page_of(viewer, url(wanted))
    assert "successful" in page
    assert "The result is 1,026 bytes of JSON" in page


def test_text_that_no_page_can_carry_is_written_out(viewer, broker):
    wanted = dead(broker, tasks.note, "half \ud800", error="RuntimeError: \ud800 \x1b[31m", text="\u202e")
    for page in (page_of(viewer, url(wanted)), page_of(viewer, JOBS, state="dead")):
        assert "\\ud800" in page and "\x1b" not in page


def test_many_errors_are_cut(viewer, broker):
    wanted = dead(broker, error="x" * 20_000, attempts=40)
    page = page_of(viewer, url(wanted))
    assert attempts_on(page).count("<tr>") == 41
    assert len(page) < 300_000


def attempts_on(page):
    """Return the table of attempts, '' where there is none."""
    return page[page.index("delayq-attempts") :].partition("</table>")[0] if "delayq-attempts" in page else ""


def test_where_there_was_one_attempt_there_is_no_table_of_them(viewer, broker):
    for wanted in (waiting(), ready(), dead(broker)):
        assert attempts_on(page_of(viewer, url(wanted))) == ""


@pytest.mark.parametrize("alias", ["default", "durable"])
def test_all_attempts_of_a_job_are_shown_also_those_of_before_it_was_revived(viewer, broker, tmp_path, alias):
    task = tasks.flaky.using(backend=alias, max_attempts=2, backoff=0.001)
    wanted = task.enqueue(str(tmp_path / "tries"), 9).id
    run_burst()
    assert operating.revive(broker, wanted) == operating.Outcome.DONE
    run_burst()
    table = attempts_on(page_of(viewer, url(wanted)))
    places = [table.index(f"attempt {number} fails") for number in (1, 2, 3, 4)]
    assert places == sorted(places)
    assert (table.count("<details>"), table.count("<tr>")) == (4, 5)


def test_what_a_job_says_of_its_attempts_and_of_what_follows_stands_on_its_page(viewer):
    wanted = tasks.noop.using(max_attempts=3, unique_key="k", on_failure="tests.jobs.tasks.heard").enqueue().id
    assert "max_attempts 3, unique key, on_failure tests.jobs.tasks.heard" in page_of(viewer, url(wanted))


def test_a_revived_job_that_a_worker_has_shows_what_it_is_at(viewer, broker):
    wanted = dead(broker)
    assert operating.revive(broker, wanted) == operating.Outcome.DONE
    claim(broker, wanted)
    table = attempts_on(page_of(viewer, url(wanted)))
    assert table.count("<tr>") == 3 and "RuntimeError: no luck" in table and "test</td>" in table


def test_hostile_and_secret_texts_of_attempts_are_escaped_and_hidden(viewer, broker):
    error = f"{HOSTILE}\x1b\nRuntimeError: {HOSTILE} {SECRET}"
    wanted = dead(broker, tasks.add, 1, error=error, attempts=2, password=SECRET)
    page = page_of(viewer, url(wanted))
    table = attempts_on(page)
    assert table.count("&lt;script&gt;") == 6, "title, and twice in the traceback, of both"
    assert HOSTILE not in page and SECRET not in page and "\x1b" not in page


def test_of_many_attempts_as_many_are_shown_as_are_kept(viewer, broker):
    page = page_of(viewer, url(dead(broker, error="x" * 20_000, attempts=300)))
    assert attempts_on(page).count("<tr>") == 101
    assert len(page) < 300_000


def test_a_job_that_is_gone_leads_back_with_a_word(boss):
    missing = f"default.{'A' * 22}"
    for view in ("change", "cancel", "run-now", "retry", "delete"):
        response = boss.get(url(missing, view), follow=True)
        assert response.status_code == 200
        assert texts(response), view
    assert texts(boss.post(url(missing, "cancel"), follow=True)) == [
        "1 job is not there any more: it has ended, or somebody deleted it."
    ]


def test_a_page_of_a_job_takes_no_post(boss):
    wanted = waiting()
    assert boss.post(url(wanted), {"id": "x"}).status_code == 405
    assert boss.put(url(wanted, "cancel")).status_code == 405


# -- what can be done


@pytest.mark.parametrize(("state", "labels"), [
    ("waiting", ["Run now", "Cancel job"]), ("ready", ["Cancel job"]), ("running", ["Stop"]),
    ("dead", ["Retry", "Delete"]),
])  # fmt: skip
def test_the_buttons_and_actions_are_those_of_the_state(boss, viewer, broker, state, labels):
    wanted = {"waiting": waiting, "ready": ready, "running": ready, "dead": lambda: dead(broker)}[state]()
    if state == "running":
        claim(broker, wanted)
    assert [button["label"] for button in boss.get(url(wanted)).context["orders"]] == labels
    assert viewer.get(url(wanted)).context["orders"] == []
    form = boss.get(JOBS, {"state": state}).context["action_form"]
    offered = [] if form is None else [str(label) for value, label in form.fields["action"].choices if value]
    assert len(offered) == len(labels)
    assert viewer.get(JOBS, {"state": state}).context["action_form"] is None
    for name in ("cancel", "run-now", "retry", "delete"):
        assert viewer.post(url(wanted, name)).status_code == 403


def test_each_button_asks_first_and_then_does_it(boss, broker):
    cancelled, hurried, retried, deleted = waiting(1), waiting(2), dead(broker, tasks.add, 3), dead(broker)
    before = counts(broker)
    for wanted, name in ((cancelled, "cancel"), (hurried, "run-now"), (retried, "retry"), (deleted, "delete")):
        page = boss.get(url(wanted, name))
        assert page.status_code == 200
        assert wanted in page.content.decode()
        assert counts(broker) == before
    assert texts(boss.post(url(cancelled, "cancel"), follow=True)) == ["1 job is cancelled."]
    assert texts(boss.post(url(hurried, "run-now"), follow=True)) == ["1 job waits for its turn now."]
    assert texts(boss.post(url(retried, "retry"), follow=True)) == ["1 job is tried again."]
    assert texts(boss.post(url(deleted, "delete"), follow=True)) == ["1 job is deleted."]
    assert counts(broker) == (0, 2, 0, 0)
    run_burst()
    assert sorted(tasks.CALLS) == [(2, 1), (3, 1)]
    assert status_of(retried) == status_of(hurried) == TaskResultStatus.SUCCESSFUL
    told = {(entry.object_id, entry.action_flag) for entry in LogEntry.objects.all()}
    assert told == {(cancelled, CHANGE), (hurried, CHANGE), (retried, CHANGE), (deleted, DELETION)}
    assert url(retried) in page_of(boss, "/admin/"), "the recent actions lead there"


def test_an_action_of_the_list_asks_first_and_says_what_became_of_each_kind(boss, broker):
    made = [waiting(n) for n in range(3)]
    held = ready()
    claim(broker, held)
    gone = waiting(9)
    asked = boss.post(JOBS, {"action": "cancel", "_selected_action": [*made, held, gone], "index": "0"})
    page = asked.content.decode()
    assert "5 jobs" in page and all(wanted in page for wanted in (*made, held, gone))
    assert counts(broker) == (4, 0, 1, 0)
    boss.post(url(gone, "cancel"))
    values = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)">', page)
    posted = {"apply": "x"}
    for name, value in values:
        posted.setdefault(name, []).append(value) if name == "_selected_action" else posted.update({name: value})
    told = texts(boss.post(JOBS, posted, follow=True))[-3:]
    assert sorted(told) == [
        "1 job is not there any more: it has ended, or somebody deleted it.",
        "1 job stays as it is: a worker holds it, so it runs or is about to.",
        "3 jobs are cancelled.",
    ]
    assert counts(broker) == (0, 0, 1, 0)


def test_actions_on_what_changed_its_state_meanwhile_change_nothing(boss, broker):
    one, other, forged = waiting(), dead(broker), dead(broker)
    forge(broker, forged)
    assert "stays as it is: it is not dead" in order(boss, "dead", "retry", one)[0]
    assert "stays as it is: it is not dead" in order(boss, "dead", "delete_selected", one)[0]
    assert "stays as it is: it has died" in order(boss, "waiting", "cancel", other)[0]
    assert "stays as it is: it has died" in order(boss, "waiting", "run_now", other)[0]
    assert "ready already" in order(boss, "waiting", "run_now", ready())[0]
    assert "not signed" in order(boss, "dead", "retry", forged)[0]
    assert counts(broker) == (1, 1, 0, 2)
    assert not LogEntry.objects.exists()


def test_an_action_that_is_not_offered_or_has_too_many_does_nothing(boss, broker, monkeypatch):
    made = [waiting(n) for n in range(5)]
    monkeypatch.setattr(job_actions, "MOST_SELECTED", 4)
    assert "At most 4 jobs" in order(boss, "waiting", "cancel", *made)[0]
    assert order(boss, "running", "cancel", made[0]) == ["No action selected."]
    assert order(boss, "waiting", "retry", made[0]) == ["No action selected."]
    assert order(client_for("view_redisjob"), "waiting", "cancel", made[0]) == []
    boss.post(JOBS, {"action": "cancel", "select_across": "1", "apply": "x", "_selected_action": made[:1]})
    assert counts(broker)[0] == 4, "across all pages means those that were chosen"


def test_who_may_delete_may_not_change_and_the_other_way_round(broker):
    one, other = dead(broker), dead(broker)
    deleter, changer = client_for("view_redisjob", "delete_redisjob"), client_for("view_redisjob", "change_redisjob")
    assert order(deleter, "dead", "retry", one) == ["No action selected."]
    assert order(changer, "dead", "delete_selected", one) == ["No action selected."]
    assert deleter.post(url(one, "retry")).status_code == 403
    assert changer.post(url(one, "delete")).status_code == 403
    assert order(deleter, "dead", "delete_selected", one) == ["1 job is deleted."]
    assert order(changer, "dead", "retry", other) == ["1 job is tried again."]


# -- where Redis is away


def test_without_redis_each_page_says_so(boss, dead_redis):
    wanted = f"default.{'A' * 22}"
    page = page_of(boss, JOBS)
    assert "Redis does not answer." in page and "There are no such jobs" not in page
    for view in ("change", "cancel", "delete"):
        forget_broker()
        response = boss.get(url(wanted, view))
        assert response.status_code == 503
        assert "Redis does not answer." in response.content.decode()
    told = texts(boss.post(url(wanted, "cancel"), follow=True))
    assert "Redis does not answer." in told[0] and "not known what became of 1 job" in told[0]
    asked = boss.post(JOBS, {"action": "cancel", "_selected_action": [wanted]})
    assert asked.status_code == 200 and wanted in asked.content.decode()
    assert "not known what became of 1 job" in order(boss, "waiting", "cancel", wanted)[0]


def test_where_redis_fails_in_between_it_is_told_what_was_done(boss, broker, monkeypatch):
    made = [waiting(n) for n in range(4)]
    real, calls = job_actions.ORDERS["cancel"], []
    away = Broker(timeout_seconds=0.2, client=redis.Redis(port=1, retry=Retry(NoBackoff(), 0)))

    def fails(asked, wanted):
        calls.append(wanted)
        return real.do(asked if len(calls) < 3 else away, wanted)

    monkeypatch.setitem(job_actions.ORDERS, "cancel", replace(real, do=fails))
    told = order(boss, "waiting", "cancel", *made)
    assert told[0] == "2 jobs are cancelled."
    assert "not known what became of 2 jobs" in told[1]
    assert counts(broker)[0] == 2
    assert LogEntry.objects.count() == 2


def test_keys_of_a_foreign_type_are_told(boss, broker):
    waiting()
    names = keys.all_keys(broker.config.prefix, broker.shards()[0])
    broker.client.delete(names["jobs"])
    broker.client.set(names["jobs"], "foreign")
    assert "Redis answers with an error." in page_of(boss, JOBS)


def test_jobs_of_another_database_are_not_shown(boss, broker):
    wanted = waiting()
    standing = json.loads(broker.layout())
    broker.write_layout(json.dumps({**standing, "database": "another"}))
    page = page_of(boss, JOBS)
    assert "another project" in page and wanted not in page
    assert boss.get(url(wanted)).status_code == 503
    assert "another project" in order(boss, "waiting", "cancel", wanted)[0]
    broker.write_layout(json.dumps(standing))
    assert counts(broker)[0] == 1


def test_a_project_that_does_not_mirror_is_not_asked(boss, settings, dead_redis):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": False}
    assert "MIRROR" in page_of(boss, JOBS)


# -- the model


def test_the_model_has_no_table_and_no_harm_in_it(boss, tmp_path):
    assert list(RedisJob.objects.all()) == [] and RedisJob._base_manager.count() == 0
    call_command("dumpdata", "django_delayq", output=str(tmp_path / "dump.json"))
    call_command("dumpdata", "django_delayq", "--all", output=str(tmp_path / "all.json"))
    assert serializers.serialize("json", RedisJob.objects.all()).strip() == "[]"
    assert reverse("admin:django_delayq_redisjob_changelist") == JOBS
