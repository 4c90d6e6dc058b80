"""Failures: in groups, told apart and found again, run again, retried and dismissed."""

import html
import itertools
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq.admin import failure_groups
from django_delayq.models import Run, Schedule
from django_delayq.monitoring import failures
from django_delayq.recurrence.point import utcnow
from tests.integration.admin_pages import HOSTILE, chosen, client_for, make, make_job, texts

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/django_delayq/run/failures/"
OVERVIEW = "/admin/django_delayq/overview/"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_points = itertools.count(1)


def fail(row, ago=MINUTE, reason="RuntimeError: no luck", status="failed", **values):
    at = utcnow() - ago
    due_at = at - timedelta(milliseconds=next(_points))
    error = values.pop("error", f"Traceback\n{reason}")
    run = Run.build_for(row, due_at, status=status, reason=reason, error=error, finished_at=at, created_at=at, **values)
    run.save()
    return run


def rows_of(page):
    return [{**row, "text": row["group"].text} for row in page.context["rows"]]


def act(client, page, number=0, **values):
    """Press the button of a group: dismiss it, or take that back."""
    row = rows_of(page)[number]
    return client.post(f"{row['act']}{page.context['query']}", {"last": row["group"].last.pk, **values}, follow=True)


def links(page, words):
    """Return the addresses of the links of these words."""
    text = page.content.decode()
    return [html.unescape(found) for found in re.findall(rf'<a [^>]*href="([^"]+)"[^>]*>{words}</a>', text)]


def test_failures_are_grouped_by_task_and_what_their_errors_have_in_common(boss, broker):
    one, two = make("one"), make("two", task="tests.app.tasks.fail")
    for number in range(3):
        fail(one, number * HOUR + MINUTE, f"KeyError: 'user {number}'")
    fail(one, reason="ValueError: x")
    fail(two, reason="KeyError: 'x'")
    fail(two, reason="poison", status="lost", error="")
    fail(one, reason="fine", status="succeeded")
    fail(one, reason="paused", status="skipped")
    page = boss.get(PAGE)
    found = {(re.sub("<.*?>", "", row["task"]), row["text"]): row for row in rows_of(page)}
    assert {key: row["count"] for key, row in found.items()} == {
        ("tests.app.tasks.noop", "KeyError: '…'"): 3,
        ("tests.app.tasks.noop", "ValueError: x"): 1,
        ("tests.app.tasks.fail", "KeyError: '…'"): 1,
        ("tests.app.tasks.fail", "poison"): 1,
    }
    group = found["tests.app.tasks.noop", "KeyError: '…'"]
    last = Run.objects.filter(reason="KeyError: 'user 0'").get()
    assert group["run"] == f"/admin/django_delayq/run/{last.pk}/change/"
    assert "KeyError: &#x27;user 0&#x27;" in group["trace"], "the last traceback, as it was"
    assert found["tests.app.tasks.fail", "poison"]["lost"] and not found["tests.app.tasks.fail", "poison"]["trace"]
    assert "6 failures, 4 groups" in " ".join(page.content.decode().split())


def test_the_last_comes_first_and_a_time_is_chosen(boss, broker):
    row = make()
    fail(row, 3 * DAY, "Old: x")
    fail(row, 3 * DAY, "Both: x")
    fail(row, 2 * HOUR, "Both: x")
    fail(row, HOUR, "Young: x")
    fail(row, 8 * DAY, "Past: x")
    shown = {span: rows_of(boss.get(PAGE, {"span": span})) for span in ("24h", "7d", "nonsense")}
    assert [(row["text"], row["count"]) for row in shown["24h"]] == [("Young: x", 1), ("Both: x", 1)]
    assert [(row["text"], row["count"]) for row in shown["7d"]] == [
        ("Young: x", 1),
        ("Both: x", 2),
        ("Old: x", 1),
    ]
    assert [row["text"] for row in shown["nonsense"]] == [row["text"] for row in shown["24h"]]
    assert [(row["text"], row["group"].is_new) for row in shown["24h"]] == [
        ("Young: x", True),
        ("Both: x", False),
    ]
    assert f"{utcnow() - 3 * DAY:%Y-%m-%d}" in shown["24h"][1]["first"], "first seen is older than what is counted"
    for row in (*shown["24h"], *shown["7d"]):
        assert row["spark"].count("<rect") == row["count"], "no two at one time here"
    assert "at most 1 in 1h" in shown["24h"][0]["spark"] and "at most 1 in 6h" in shown["7d"][0]["spark"]


def test_a_failure_counts_when_it_ended_and_one_without_an_end_at_its_point(broker):
    row, now = make(), utcnow()
    late = fail(row, HOUR)
    Run.objects.filter(pk=late.pk).update(due_at=now - 2 * DAY)
    lost = fail(row, 2 * HOUR, status="lost")
    Run.objects.filter(pk=lost.pk).update(finished_at=None)
    (group,) = failures.group_failures(failures.read_failures(now), now - DAY)
    assert group.last.pk == late.pk and len(group.times) == 2 and group.first == Run.objects.get(pk=lost.pk).due_at


def test_only_the_newest_are_read_and_the_page_says_so(boss, broker, monkeypatch):
    row = make()
    for number in reversed(range(6)):
        fail(row, number * HOUR + MINUTE, status="lost" if number % 2 else "failed")
    assert "banner" not in boss.get(PAGE).content.decode()
    assert rows_of(boss.get(PAGE))[0]["group"].is_new
    monkeypatch.setattr(failures, "MOST_READ", 4)
    page = boss.get(PAGE)
    assert "these are the newest 4." in page.content.decode()
    assert rows_of(page)[0]["count"] == 4
    assert not rows_of(page)[0]["group"].is_new, "what is older was not read"
    assert "It is not known which groups are new." in page.content.decode()
    assert not rows_of(boss.get(PAGE, {"span": "7d"}))[0]["group"].is_new


def test_what_is_new_is_known_where_a_day_was_read_in_full(boss, broker, monkeypatch):
    row = make()
    for ago, reason in ((3 * DAY, "New: x"), (2 * DAY, "Old: x"), (2 * HOUR, "Old: x"), (HOUR, "New: x")):
        fail(row, ago, reason)
    monkeypatch.setattr(failures, "MOST_READ", 3)
    page = boss.get(PAGE)
    assert "are the newest 3." in page.content.decode() and "is not known" not in page.content.decode()
    assert [(row["text"], row["group"].is_new) for row in rows_of(page)] == [("New: x", True), ("Old: x", False)]


def test_a_group_leads_to_its_runs_and_schedules_in_their_lists(boss, broker):
    one, two, other = make("one"), make("two"), make("other")
    wanted = [fail(one, HOUR, "KeyError: 1"), fail(one, reason="KeyError: 2"), fail(two, reason="KeyError: 3")]
    old, gone = fail(other, 2 * DAY, "KeyError: 4"), fail(make("gone"), reason="KeyError: 5")
    fail(other, reason="ValueError: x")
    Schedule.objects.get(name="gone").delete()
    (row,) = (row for row in rows_of(boss.get(PAGE)) if row["count"] == 4)
    with CaptureQueriesContext(connection) as queries:
        found = boss.get(row["list"])
    assert len(queries) <= 17
    assert set(found.context["cl"].queryset.values_list("pk", flat=True)) == {one.pk, two.pk}
    assert "tests.app.tasks.noop: KeyError: #" in found.content.decode(), "the filter says what it is"
    assert set(boss.get(row["runs"]).context["cl"].queryset) == {*wanted, gone}
    (week,) = (row for row in rows_of(boss.get(PAGE, {"span": "7d"})) if row["count"] == 5)
    assert set(boss.get(week["runs"]).context["cl"].queryset) == {*wanted, gone, old}
    assert "error=" not in boss.get("/admin/django_delayq/schedule/").content.decode()


def test_a_group_that_is_gone_or_hidden_lists_nothing_and_says_so(boss, broker):
    fail(make("one"), reason="KeyError: 1")
    (row,) = rows_of(boss.get(PAGE))
    looks = client_for("view_schedule")
    for client, address in ((boss, f"{row['list']}0"), (boss, f"{row['runs']}0"), (looks, row["list"])):
        found = client.get(address)
        assert not found.context["cl"].queryset.exists() and "These failures no longer exist." in found.content.decode()
        assert "KeyError" not in found.content.decode() or client is boss
    assert rows_of(client_for("view_run").get(PAGE))[0]["list"] == ""


def test_five_schedules_are_named_with_links(boss, broker):
    schedules = [make(f"s{number}") for number in range(7)]
    for row in schedules:
        fail(row, (row.pk % 7) * MINUTE + MINUTE)
    (row,) = rows_of(boss.get(PAGE))
    assert len(row["schedules"]) == 5 and row["more"] == 2
    assert all(address.endswith("/change/") for _, address in row["schedules"])
    assert "and 2 more" in boss.get(PAGE).content.decode()
    (row,) = rows_of(client_for("view_run").get(PAGE))
    assert {address for _, address in row["schedules"]} == {""}, "who may not follow a link is given none"


def test_there_are_pages_of_groups(boss, broker, monkeypatch):
    monkeypatch.setattr(failure_groups, "GROUPS_SHOWN", 2)
    row = make()
    for name in "abcde":
        fail(row, reason=f"{name}: x")
    seen, address = [], PAGE
    while address:
        page = boss.get(address)
        seen += [row["text"] for row in rows_of(page)]
        following = links(page, "Next page")
        address = f"{PAGE}{following[0]}" if following else ""
    assert sorted(seen) == [f"{name}: x" for name in "abcde"]
    assert boss.get(PAGE, {"page": "nonsense"}).status_code == 200


def test_a_long_traceback_is_shown_from_its_end(boss, broker):
    lines = "\n".join(f"line {number}" for number in range(3000))
    fail(make(), error=f"BEGINNING\n{lines}\nRuntimeError: no luck password=swordfish")
    (row,) = rows_of(boss.get(PAGE))
    assert "BEGINNING" not in row["trace"] and "RuntimeError: no luck" in row["trace"] and len(row["trace"]) < 5000
    assert "swordfish" not in row["trace"]
    assert re.search(r">…\nline \d+\n", row["trace"]), "from the beginning of a line"


def test_errors_are_read_of_the_last_runs_only_and_in_part(boss, broker):
    row = make()
    for _ in range(5):
        fail(row)
    with CaptureQueriesContext(connection) as queries:
        boss.get(PAGE)
    asked = [query["sql"] for query in queries if "django_delayq_run" in query["sql"]]
    assert len(asked) == 3
    assert ['"error"' in sql for sql in asked] == [False, False, True]
    assert [sql.count("LIMIT") for sql in asked] == [1, 1, 0]


def test_hostile_texts_are_escaped_and_secrets_hidden(boss, broker):
    row = make(HOSTILE)
    run = fail(row, reason=f"{HOSTILE} token=swordfish \u202e", error=f"{HOSTILE} password=swordfish")
    Run.objects.filter(pk=run.pk).update(task=HOSTILE)
    make_job(error=f"RuntimeError: {HOSTILE} password=swordfish"), make_job(task=HOSTILE, error=HOSTILE)
    pages = [boss.get(PAGE), boss.get(PAGE, {"span": HOSTILE, "page": HOSTILE})]
    pages += [boss.get(row["runs"]) for row in rows_of(pages[0])]
    assert len(pages) == 5
    for page in pages:
        text = page.content.decode()
        assert page.status_code == 200 and "<script>alert" not in text and "swordfish" not in text
        assert "\u202e" not in text and " onclick" not in text and "<style" not in text
    assert html.escape(HOSTILE) in pages[0].content.decode()


def test_who_may_view_runs_may_view_it_and_nobody_else(broker):
    fail(make())
    make_job()
    assert Client().get(PAGE).status_code == 302
    for stranger in (client_for(), client_for("view_schedule", "change_schedule")):
        assert stranger.get(PAGE).status_code == 403
    for codenames, dismisses, linked in (
        (["view_run"], False, False), (["change_run"], True, False), (["view_run", "delete_run"], False, False),
        (["view_run", "change_schedule"], True, True),
    ):  # fmt: skip
        page = client_for(*codenames).get(PAGE)
        assert page.status_code == 200 and len(rows_of(page)) == 2
        text = page.content.decode()
        assert (">Dismiss<" in text, "/schedule/" in text) == (dismisses, linked)


def test_dismissing_needs_a_permission_and_a_post(boss, broker):
    fail(make())
    page = boss.get(PAGE)
    address = f"{rows_of(page)[0]['act']}?span=24h"
    for client in (
        client_for("view_run", "view_schedule", "add_schedule", "delete_run"),
        client_for("change_schedule"),
    ):
        assert client.get(address).status_code == 405 and act(client, page).status_code == 403
    assert boss.put(address).status_code == 405 and not dismissed()
    for codename in ("change_schedule", "run_schedule", "change_run"):
        codenames = ("view_run", "view_schedule", codename)
        assert act(client_for(*codenames), page).status_code == 200 and dismissed() == 1
        Run.objects.update(dismissed_until=None)


def test_a_group_that_is_gone_says_so(boss, broker):
    for name in ("dismiss", "take-back"):
        page = boss.post(f"{PAGE}{'0' * 32}/{name}/", follow=True)
        assert page.redirect_chain[-1][0].startswith(PAGE) and "These failures no longer exist." in texts(page)[0]
    assert not dismissed()


def test_a_group_is_run_again_in_the_list_of_its_schedules(boss, broker):
    one, two, gone, other = make("one"), make("two", enabled=False), make("gone"), make("other")
    for row in (one, one, two, gone):
        fail(row)
    fail(other, reason="Other: x")
    gone.delete()
    (row,) = (row for row in rows_of(boss.get(PAGE)) if row["count"] == 4)
    asked = boss.post(row["list"], {"action": "run_now", "_selected_action": [one.pk], "select_across": "1"})
    assert sorted(asked.context["names"]) == ["one", "two"] and not Run.objects.filter(origin="manual").exists()
    assert texts(boss.post(row["list"], chosen(asked), follow=True)) == ["2 runs are queued."]
    assert sorted(Run.objects.filter(origin="manual").values_list("schedule_name", "status")) == [
        ("one", "queued"), ("two", "queued"),
    ]  # fmt: skip


def test_what_fails_after_it_was_shown_is_not_dismissed(boss, broker):
    fail(make("one"), HOUR)
    page = boss.get(PAGE)
    fail(make("two"))
    act(boss, page)
    assert len(rows_of(boss.get(PAGE))) == 1
    act(boss, boss.get(PAGE))
    assert rows_of(boss.get(PAGE)) == [] and dismissed() == 2
    assert "All failures are dismissed." in boss.get(PAGE).content.decode()


# -- dismiss


def dismissed():
    """Return how many runs have a dismissed failure."""
    return Run.objects.filter(dismissed_until__isnull=False).count()


def test_a_dismissed_group_is_hidden_until_it_fails_again(boss, broker):
    row = make()
    fail(row, HOUR, "KeyError: 'a'")
    fail(row, HOUR, "Other: x")
    page = boss.get(PAGE)
    done = act(boss, page, [each["text"] for each in rows_of(page)].index("KeyError: '…'"))
    assert texts(done) == ["It is dismissed until it fails again."]
    assert [each["text"] for each in rows_of(done)] == ["Other: x"]
    assert "1 failure, 1 group" in " ".join(done.content.decode().split())
    assert dismissed() == 1
    more = "?span=24h&dismissed=1"
    assert f'<a href="{html.escape(more)}">Show dismissed (1)</a>' in done.content.decode()
    everything = boss.get(f"{PAGE}{more}")
    assert len(rows_of(everything)) == 2 and ">dismissed<" in everything.content.decode()
    fail(row, MINUTE, "KeyError: 'b'")
    assert {each["text"]: each["count"] for each in rows_of(boss.get(PAGE))} == {
        "KeyError: '…'": 2,
        "Other: x": 1,
    }


@pytest.mark.parametrize("last", ["", "nonsense", "0", "9" * 400])
def test_a_run_that_no_page_has_shown_dismisses_nothing(boss, broker, last):
    fail(make())
    act(boss, boss.get(PAGE), last=last)
    assert not dismissed()


def test_a_job_that_fails_again_after_a_retry_shows_its_group_again(boss, broker):
    job = make_job()
    act(boss, boss.get(PAGE))
    assert rows_of(boss.get(PAGE)) == []
    Run.objects.filter(pk=job.pk).update(finished_at=utcnow() + MINUTE)
    assert len(rows_of(boss.get(PAGE))) == 1


def test_a_group_whose_last_run_is_deleted_stays_dismissed(boss, broker):
    row = make()
    fail(row, HOUR)
    last = fail(row, MINUTE)
    act(boss, boss.get(PAGE))
    last.delete()
    assert rows_of(boss.get(PAGE)) == []


def test_jobs_are_groups_which_are_retried_or_deleted_in_the_list_of_runs(boss, built):
    fail(make(task="tests.app.tasks.add", args=[1]), reason="RuntimeError: no user 7")
    jobs = [make_job(number, error=f"Traceback\nRuntimeError: no user {number}") for number in range(3)]
    make_job(error="Traceback\nOther: x", status="lost")
    page = boss.get(PAGE)
    groups = {(row["text"], row["group"].of_jobs): row["count"] for row in rows_of(page)}
    assert groups == {
        ("RuntimeError: no user #", True): 3,
        ("Other: x", True): 1,
        ("RuntimeError: no user #", False): 1,
    }
    (row,) = (row for row in rows_of(page) if row["count"] == 3)
    assert row["schedules"] == [] and not row["list"]
    listed = boss.get(row["runs"]).context["cl"].result_list
    assert {run.pk for run in listed} == {job.pk for job in jobs}
    values = {"_selected_action": [jobs[0].pk], "apply": "1"}
    done = boss.post(row["runs"], {"action": "delete", **values}, follow=True)
    assert texts(done) == ["1 job is deleted."]
    asked = boss.post(row["runs"], {"action": "retry", "_selected_action": [jobs[1].pk], "select_across": "1"})
    assert len(asked.context["names"]) == 2 and Run.objects.filter(status="failed").count() == 3
    assert texts(boss.post(row["runs"], chosen(asked), follow=True)) == ["2 jobs are queued again."]
    assert Run.objects.filter(origin="job", status="queued").count() == 2


def test_a_group_of_jobs_shows_no_secret_that_one_was_called_with(boss, built):
    make_job(kwargs={"password": "swordfish"}, error="Traceback\nValueError: swordfish refused")
    page = boss.get(PAGE)
    for shown in (page, boss.get(rows_of(page)[0]["runs"])):
        assert "refused" in shown.content.decode() and "swordfish" not in shown.content.decode()
