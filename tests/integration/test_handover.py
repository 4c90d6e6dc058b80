"""Schedules that name a backend of TASKS: what is handed over, what is refused, and where that is told.

Here the backends do one thing each; `tests/handover` has real ones, with their own workers.
"""

import doctest
import json
import re
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from django_delayq import actions, sync
from django_delayq.calls.registry import get_tasks
from django_delayq.models import Origin, Run, Schedule, Status
from django_delayq.recurrence import to_ms
from django_delayq.signals import run_finished
from django_delayq.worker.logs import JsonFormatter
from tests.acceptance.support import ROOT
from tests.app import tasks
from tests.app.backends import ACCEPTED, FRAMEWORK, FlakyBackend
from tests.integration.admin_pages import ADD, LIST, change_url, errors, fields
from tests.integration.probing import ask, codes, text, well
from tests.integration.test_explain import iso, told
from tests.support import DAILY_CRON, DAY, make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["well"]

PATH = "tests.app.backends"
TASKS = {
    "default": {"BACKEND": f"{FRAMEWORK}.backends.immediate.ImmediateBackend"},
    "dummy": {"BACKEND": f"{FRAMEWORK}.backends.dummy.DummyBackend"},
    "ours": {"BACKEND": "django_delayq.backend.DelayQBackend"},
    "accepting": {"BACKEND": f"{PATH}.AcceptingBackend"},
    "plain": {"BACKEND": f"{PATH}.PlainBackend"},
    "letters": {"BACKEND": f"{PATH}.AcceptingBackend", "QUEUES": ["letters", "parcels"]},
    "flaky": {"BACKEND": f"{PATH}.FlakyBackend", "OPTIONS": {"failures": 2}},
    "slow": {"BACKEND": f"{PATH}.SlowBackend", "OPTIONS": {"seconds": 5}},
    "strange": {"BACKEND": f"{PATH}.StrangeBackend"},
    "unmakeable": {"BACKEND": f"{PATH}.UnmakeableBackend"},
    "missing": {"BACKEND": "no.such.Backend"},
}


@pytest.fixture(autouse=True)
def known(settings):
    """Know these backends, and nothing accepted yet. Tasks keep the class that the tests' own setting gives them."""
    get_tasks()
    settings.TASKS = TASKS
    ACCEPTED.clear()
    FlakyBackend.failures = 0


def schedule(backend="accepting", task="add", name="s", **values):
    values = {"kind": "cron", "cron": DAILY_CRON, "args": [2] if task == "add" else [], **values}
    return Schedule.objects.create(name=name, task=f"tests.app.tasks.{task}", backend=backend, **values)


def stored(**values):
    """Return a schedule with values that no form and no `save()` lets through."""
    row = schedule(task=values.pop("task", "add"))
    Schedule.objects.filter(pk=row.pk).update(**values)
    row.refresh_from_db()
    return row


def burst(broker, row):
    """Run the one point of a schedule, and return its row."""
    make_due(broker, row)
    run_burst()
    return Run.objects.get(schedule_id=row.pk)


# -- what is handed over


def test_a_due_point_is_enqueued_there_and_recorded_when_it_is_accepted(broker):
    seen = []
    run_finished.connect(lambda run, **kwargs: seen.append(run.reason), weak=False, dispatch_uid="test")
    tasks.CALLS.clear()
    row = schedule(kwargs={"b": 3}, queue="mail", priority=-7, description="is not passed on")
    point = make_due(broker, row)
    run_burst()
    run_finished.disconnect(dispatch_uid="test")
    run = Run.objects.get()
    assert ACCEPTED == [("accepting", "tests.app.tasks.add", (2,), {"b": 3}, -7, "default")]
    assert (run.status, run.reason, run.error, run.attempt) == (Status.SUCCEEDED, "handed_over", "", 1)
    assert run.result == {"backend": "accepting", "result_id": "id-1"}
    assert tasks.CALLS == []  # nobody has executed it
    assert seen == ["handed_over"]
    assert broker.read_views([(f"s{row.pk}", "mail")])[0].point_ms == to_ms(point + DAY)


@pytest.mark.parametrize(("priority", "passed"), [(0, 5), (1, 1), (-100, -100)])
def test_a_priority_of_0_is_that_of_the_task(broker, priority, passed):
    burst(broker, schedule(task="urgent", priority=priority))
    assert ACCEPTED[0][4] == passed


def test_orders_and_points_side_by_side_are_handed_over_too(broker):
    row = schedule(overlap="allow")
    make_due(broker, row)
    actions.run_now(row)
    run_burst()
    found = set(Run.objects.values_list("origin", "separate", "status", "reason"))
    assert found == {
        (Origin.DUE, True, "succeeded", "handed_over"), (Origin.MANUAL, True, "succeeded", "handed_over"),
    }  # fmt: skip
    assert len(ACCEPTED) == 2


def test_an_accepted_point_counts_as_ended_for_its_schedule(broker):
    row = schedule(kind="every", cron="", every=timedelta(hours=1), every_from="finish", max_runs=2)
    run = burst(broker, row)
    row.refresh_from_db()
    assert (row.state.last_finished_at, row.state.run_count) == (run.finished_at, 1)
    assert row.preview(1)[0].due_at >= run.finished_at + timedelta(hours=1)


def test_the_documented_examples_are_true(broker, settings):
    settings.TASKS = {"default": TASKS["default"], "rows": TASKS["accepting"]}
    page = (ROOT / "docs/schedules.md").read_text()
    section = page.split("## Schedules for other task backends")[1].split("\n## ")[0]
    saving, looking = re.findall(r"```pycon\n(.*?)```", section, re.DOTALL)
    names = {"Schedule": Schedule, "Run": Run, "timedelta": timedelta}
    prove(saving.replace("shop.tasks.check_stock", "tests.app.tasks.noop"), names)
    make_due(broker, names["stock"])
    run_burst()
    prove(looking.replace("…", "id-1"), names)


def prove(example, names):
    """Run an example with what the one before left in `names`."""
    test = doctest.DocTestParser().get_doctest(example, names, "docs/schedules.md", None, 0)
    said = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert test.examples and not said, "".join(said)


# -- what goes wrong


def test_a_failed_enqueue_is_tried_again_and_hides_secrets(broker):
    row = schedule("flaky", "urgent", kwargs={"token": "hush-hush"}, max_attempts=2, backoff=timedelta(0))
    run = burst(broker, row)
    assert (run.status, run.attempt, run.result, ACCEPTED) == (Status.FAILED, 2, None, [])
    assert run.reason.startswith("ConnectionError: the broker at redis://")
    for shown in (run.reason, run.error):
        assert "swordfish" not in shown and "hush-hush" not in shown
    FlakyBackend.failures = 0
    row = schedule("flaky", name="more attempts", max_attempts=3, backoff=timedelta(0))
    run = burst(broker, row)
    assert (run.status, run.attempt, run.reason, run.error) == (Status.SUCCEEDED, 3, "handed_over", "")
    assert len(ACCEPTED) == 1


def test_an_enqueue_that_takes_longer_than_the_timeout_is_a_failed_attempt(broker):
    run = burst(broker, schedule("slow", timeout=timedelta(seconds=0.3)))
    assert run.status == Status.FAILED
    assert run.reason == "django_delayq.exceptions.TaskTimeout: stopped after its timeout of 0.3 s"
    assert ACCEPTED == []


def test_a_backend_that_returns_no_result_has_accepted_all_the_same(broker):
    run = burst(broker, schedule("strange"))
    assert (run.status, run.result) == (Status.SUCCEEDED, {"backend": "strange", "result_id": None})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"backend": "acepting"}, "TASKS has no backend 'acepting'. Did you mean 'accepting'?"),
        ({"backend": "letters"}, "'letters' does not take tests.app.tasks.add: Queue 'default' is not valid"),
        ({"backend": "plain", "priority": 3}, "Set the priority to 0"),
        ({"backend": "missing"}, "'missing' cannot be used: Could not find backend 'no.such.Backend'"),
        ({"kwargs": {"c": 1}}, "InvalidArguments"),
    ],
)
def test_what_can_never_be_enqueued_is_not_tried_again(broker, values, reason):
    row = stored(max_attempts=4, backoff=timedelta(0), **values)
    run = burst(broker, row)
    assert (run.status, run.attempt, ACCEPTED) == (Status.FAILED, 1, [])
    assert reason in run.reason


def test_a_backend_that_cannot_be_made_now_is_tried_again(broker):
    run = burst(broker, stored(backend="unmakeable", max_attempts=2, backoff=timedelta(0)))
    assert (run.status, run.attempt) == (Status.FAILED, 2)
    assert run.reason.startswith("OSError: no route") and "swordfish" not in run.error


# -- Django's own backends


def test_the_immediate_backend_executes_within_enqueue(broker):
    tasks.CALLS.clear()
    run = burst(broker, schedule("default"))
    assert (run.status, run.reason, run.result["backend"]) == (Status.SUCCEEDED, "handed_over", "default")
    assert tasks.CALLS == [(2, 1)]


def test_a_result_that_has_failed_already_was_not_accepted(broker):
    row = schedule("default", "fail", kwargs={"message": "no luck"}, max_attempts=2, backoff=timedelta(0))
    run = burst(broker, row)
    assert (run.status, run.attempt, run.result) == (Status.FAILED, 2, None)
    said = "HandoverFailed: The TASKS backend 'default' returned a failed result: RuntimeError: no luck"
    assert run.reason == f"django_delayq.calls.handover.{said}"
    assert run.reason in run.error and "raise RuntimeError(message)" in run.error


def test_the_dummy_backend_accepts_and_keeps(broker, tmp_path):
    run = burst(broker, schedule("dummy", "anote", args=[str(tmp_path / "f")], timeout=timedelta(minutes=1)))
    assert (run.status, run.result["backend"], len(run.result["result_id"])) == (Status.SUCCEEDED, "dummy", 32)


def test_our_own_backend_gets_a_job_and_our_workers_execute_that(broker):
    tasks.CALLS.clear()
    run = burst(broker, schedule("ours", priority=4))
    assert (run.status, run.reason) == (Status.SUCCEEDED, "handed_over")
    run_burst()  # where the first did not see the job any more
    job = tasks.add.using(backend="ours").get_result(run.result["result_id"])
    assert (job.return_value, job.task.priority, tasks.CALLS) == (3, 4, [(2, 1)])


# -- what is refused at once


@pytest.mark.parametrize(
    ("values", "field", "parts"),
    [
        ({"backend": "acepting"}, "backend", ["'acepting'", "Did you mean 'accepting'?", "dummy"]),
        ({"backend": "letters"}, "backend", ["Queue 'default' is not valid", "has letters, parcels"]),
        ({"backend": "plain", "priority": 1}, "priority", ["priority", "Set the priority to 0"]),
        ({"backend": "plain", "task": "urgent"}, "backend", ["@task(priority=5)"]),
        ({"backend": "plain", "task": "anote", "args": ["/f"]}, "backend", ["does not support async"]),
        ({"backend": "accepting", "priority": 101}, "priority", ["between -100 and 100"]),
        ({"backend": "accepting", "priority": -101}, "priority", ["between -100 and 100"]),
        ({"backend": "unmakeable"}, "backend", ["cannot be used: OSError", "no route"]),
        ({"backend": "missing"}, "backend", ["cannot be used", "no.such.Backend"]),
    ],
)
def test_a_backend_that_would_not_take_the_task_is_refused_by_field(values, field, parts):
    with pytest.raises(ValidationError) as refused:
        schedule(**values)
    found = refused.value.message_dict
    assert list(found) == [field]
    said = " ".join(found[field])
    assert [part for part in parts if part not in said] == [], said
    assert "swordfish" not in said
    assert not Schedule.objects.exists()


def test_a_change_of_backend_or_priority_alone_is_validated_and_nothing_else_is(settings):
    row = schedule("")
    row.backend = "letters"
    with pytest.raises(ValidationError):
        row.save()
    row.backend, row.priority = "plain", 2
    with pytest.raises(ValidationError):
        row.save(update_fields=["backend", "priority"])
    row.priority = 0
    row.save()
    settings.TASKS = {"default": TASKS["default"]}
    row.refresh_from_db()
    row.pause("its backend is gone")  # what does not concern it can still be changed
    assert Schedule.objects.get().pause_reason == "its backend is gone"


# -- where people see it


def test_the_form_offers_the_backends_and_explains_them(boss):
    page = boss.get(ADD).content.decode()
    assert '<option value="" selected>workers of this app</option>' in page
    assert '<option value="letters">letters (AcceptingBackend)</option>' in page
    assert "as soon as that backend accepts it" in page and "-100 to 100, higher is sooner" in page
    boss.post(ADD, fields(backend="accepting", priority="9"))
    row = Schedule.objects.get()
    assert (row.backend, row.priority) == ("accepting", 9)
    boss.post(change_url(row), fields(backend="", priority="", seen=str(row.generation)))
    row.refresh_from_db()
    assert (row.backend, row.priority) == ("", 0)


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"backend": "nowhere"}, "backend", "valid choice"),
        ({"backend": "letters"}, "backend", "has letters, parcels"),
        ({"priority": "101"}, "priority", "less than or equal to 100"),
        ({"priority": "-101"}, "priority", "greater than or equal to -100"),
    ],
)
def test_the_form_tells_what_is_refused_at_its_field(boss, values, field, message):
    found = errors(boss.post(ADD, fields(**values)))
    assert list(found) == [field]
    assert message in found[field][0]


def test_a_backend_that_tasks_no_longer_has_is_shown_and_told(boss):
    row = stored(backend="retired")
    page = boss.get(change_url(row)).content.decode()
    assert '<option value="retired" selected>retired (not in TASKS)</option>' in page
    assert "backend refuses" in page and "TASKS has no backend &#x27;retired&#x27;" in page
    found = errors(boss.post(change_url(row), fields(backend="retired", seen=str(row.generation))))
    assert "TASKS has no backend 'retired'" in found["backend"][0]


def test_lists_and_details_tell_who_has_it(boss, broker):
    row = schedule()
    assert "→ accepting" in boss.get(LIST).content.decode()
    run = burst(broker, row)
    assert "handed over to accepting" in boss.get("/admin/django_delayq/run/").content.decode()
    detail = boss.get(f"/admin/django_delayq/run/{run.pk}/change/").content.decode()
    assert "handed over to accepting" in detail and "id-1" in detail
    assert "handed over to accepting" in boss.get(change_url(row)).content.decode()


def test_the_explanation_tells_who_has_it_or_why_nobody(broker):
    row = schedule()
    point = make_due(broker, row)
    assert "It is handed over to the TASKS backend accepting" in told(row)
    run_burst()
    said = told(row, at=iso(point))
    assert "Handed over to the TASKS backend accepting, which accepted it as result id-1" in said
    Schedule.objects.update(backend="letters")
    assert "Each run fails: The TASKS backend 'letters' does not take" in told(row)
    Schedule.objects.update(backend="")
    said = told(row)
    assert "It is handed over" not in said and "Each run fails" not in said


def test_the_status_names_stored_schedules_that_no_backend_takes(well):
    schedule(name="good")
    assert codes() == (0, [])
    assert ask()[1]["database"]["refused"] == {"count": 0, "names": []}
    for number in range(6):
        schedule(name=f"bad {number}")
    Schedule.objects.filter(name__startswith="bad").update(backend="retired")
    sync.sweep_fully(well)
    code, found = ask()
    assert (code, [problem["code"] for problem in found["problems"]]) == (1, ["unknown_name"])
    assert "6 schedules" in found["problems"][0]["message"] and "bad 0, bad 1" in found["problems"][0]["message"]
    assert found["database"]["refused"]["count"] == 6 and len(found["database"]["refused"]["names"]) == 5
    assert "Refused: 6 (bad 0" in text()
    Schedule.objects.filter(name__startswith="bad").update(enabled=False)
    sync.sweep_fully(well)
    assert codes() == (0, [])


def test_the_log_tells_backend_and_result_as_text_and_as_json(broker, caplog):
    caplog.set_level("INFO", "django_delayq.worker")
    burst(broker, schedule())
    (record,) = [record for record in caplog.records if "succeeded" in record.getMessage()]
    assert "backend accepting  result id-1" in record.getMessage()
    event = json.loads(JsonFormatter().format(record))
    assert (event["backend"], event["result_id"], event["reason"]) == ("accepting", "id-1", "handed_over")
