"""The limits that SECURITY.md names: each one refuses or cuts, and the document tells its number."""

import json
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from django_delayq import actions as orders
from django_delayq import conf
from django_delayq.admin import RunAdmin, ScheduleAdmin, base, confirming, display, schedule_actions, upcoming
from django_delayq.calls import registry, validators
from django_delayq.calls.compat import TaskResultStatus
from django_delayq.calls.compat import task as make_task
from django_delayq.exceptions import ResultTooLarge
from django_delayq.management.commands import delayq_status
from django_delayq.models import Origin, Run, Schedule
from django_delayq.worker import calling, held
from tests.integration.admin_pages import LIST
from tests.integration.mirroring import schedule
from tests.security.acl import SECURITY
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def row_of(words):
    """Return the cells of the document's row of limits that begins with these words."""
    (line,) = [line for line in SECURITY.read_text("utf-8").splitlines() if line.startswith(f"| {words}")]
    return line


NUMBERS = [
    ("arguments", [validators.MAX_ARGUMENT_BYTES // 1024, validators.MAX_DEPTH]),
    ("result", [conf.Config().max_result_bytes // 1024]),
    ("error", [calling.MAX_ERROR_CHARS, calling.MAX_TITLE_CHARS]),
    ("retries", [held.MAX_BACKOFF // timedelta(hours=1)]),
    ("backfill", [orders.LIMIT, orders.MOST_LOOKED_AT, schedule_actions.POINTS_SHOWN]),
    ("preview", [upcoming.SHOWN, delayq_status.MOST_SHOWN]),
    ("lists", [ScheduleAdmin.list_per_page, RunAdmin.list_per_page, base.MOST_COUNTED, confirming.NAMES_SHOWN]),
    ("“show all”", [ScheduleAdmin.list_max_show_all]),
    ("texts on a page", [display.MOST_CHARACTERS]),
    ("batch, shards", [conf.get_config().batch_size, conf.MAX_SHARDS]),
]


@pytest.mark.parametrize(("words", "numbers"), NUMBERS, ids=[words for words, _ in NUMBERS])
def test_the_document_tells_the_number(words, numbers):
    for number in numbers:
        assert f"{number:,}" in row_of(words)
    assert RunAdmin.list_max_show_all == ScheduleAdmin.list_max_show_all


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "every", "cron": "", "every": timedelta(seconds=29)}, "every"),
        ({"cron": "*/20 * * * * *"}, "cron"),
        ({"cron": "0,29 0 9 1 1 *"}, "cron"),
        ({"cron": "5,10 59,58 9 * * *"}, "cron"),
    ],
)
def test_a_shorter_interval_than_the_minimum_is_refused(settings, values, field):
    settings.DELAYQ = {**settings.DELAYQ, "MIN_INTERVAL_SECONDS": 30}
    with pytest.raises(ValidationError) as refused:
        schedule(**values)
    least = "it must be at least 30 s" if field == "every" else "the minimum is 30 s"
    assert least in refused.value.message_dict[field][0]
    assert not Schedule.objects.exists()
    schedule(cron="0,30 * * * * *")


def known(monkeypatch, made):
    """Let workers know a task of this module."""
    monkeypatch.setattr(registry, "_tasks", {**registry.get_tasks(), made.module_path: made})


@make_task
def enormous() -> str:
    """Return more than can be stored."""
    return "x" * 10_000_000


@make_task
def furious() -> None:
    """Fail with more words than can be stored."""
    raise RuntimeError("no luck " * 1_000_000)


@pytest.mark.parametrize("made", [enormous, furious])
def test_results_and_errors_are_cut_before_they_are_stored(broker, monkeypatch, made):
    known(monkeypatch, made)
    row = schedule(task=made.module_path)
    orders.run_now(row)
    run_burst()
    run = Run.objects.get()
    assert len(json.dumps(run.result)) < 1000
    assert len(run.error) <= calling.MAX_ERROR_CHARS
    assert len(run.reason) <= calling.MAX_TITLE_CHARS
    assert run.status == ("succeeded" if made is enormous else "failed")


def test_a_result_may_be_as_large_as_the_setting_says(broker, settings, monkeypatch):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RESULT_BYTES": 10_000_002}
    known(monkeypatch, enormous)
    orders.run_now(schedule(task=enormous.module_path))
    result = enormous.enqueue()
    run_burst()
    result.refresh()
    run = Run.objects.exclude(origin=Origin.JOB).get()
    assert (len(result.return_value), len(run.result)) == (10_000_000, 10_000_000)
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RESULT_BYTES": 10_000_001}
    known(monkeypatch, enormous)  # with the settings the tasks may be others
    result = enormous.enqueue()
    run_burst()
    result.refresh()
    with pytest.raises(ResultTooLarge):
        _ = result.return_value


@make_task(takes_context=True)
def ask_for_too_much(context):
    """Fail first as one does who asks for a value that is not kept; then return nothing."""
    if context.attempt == 1:
        raise ResultTooLarge("somebody else's")


def test_who_failed_by_a_result_that_was_too_large_has_a_result_of_its_own(broker, monkeypatch):
    known(monkeypatch, ask_for_too_much)
    once, twice = (ask_for_too_much.using(max_attempts=attempts, backoff=0).enqueue() for attempts in (1, 2))
    run_burst()
    run_burst()
    once.refresh()
    twice.refresh()
    assert once.status == TaskResultStatus.FAILED
    assert (twice.status, twice.attempts, len(twice.errors)) == (TaskResultStatus.SUCCESSFUL, 2, 1)
    assert twice.return_value is None


def test_retries_wait_at_most_an_hour():
    assert held.compute_backoff_ms(timedelta(days=9), 32_767) <= 3_600_000


def test_pages_show_no_more_than_their_size(boss):
    rows = [
        Schedule(name=f"s{n}", task="tests.app.tasks.noop", kind="cron", cron="0 9 * * *")
        for n in range(ScheduleAdmin.list_max_show_all + 1)
    ]
    Schedule.objects.bulk_create(rows)
    for query in ("", "?all="):
        assert len(boss.get(LIST + query).context["cl"].result_list) == ScheduleAdmin.list_per_page
    posted = {"action": "pause", "_selected_action": [row.pk for row in Schedule.objects.all()[:100]]}
    assert len(boss.post(LIST, posted).context["names"]) == confirming.NAMES_SHOWN
