"""Failures: in groups, told apart and found again, run again, retried and dismissed."""

import html
import itertools
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_delayq.admin import failures as page_of_failures
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
    run = Run.of(row, due_at, status=status, reason=reason, error=error, finished_at=at, created_at=at, **values)
    run.save()
    return run


def rows_of(page):
    return page.context["rows"]


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
    assert [(row["text"], row["count"]) for row in shown["7d"]] == [("Young: x", 1), ("Both: x", 2), ("Old: x", 1)]
    assert [row["text"] for row in shown["nonsense"]] == [row["text"] for row in shown["24h"]]
    assert [(row["text"], row["is_new"]) for row in shown["24h"]] == [("Young: x", True), ("Both: x", False)]
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
    assert rows_of(boss.get(PAGE))[0]["is_new"]
    monkeypatch.setattr(failures, "MOST_READ", 4)
    page = boss.get(PAGE)
    assert "this is of the newest 4." in page.content.decode()
    assert rows_of(page)[0]["count"] == 4
    assert not rows_of(page)[0]["is_new"], "what is older was not read"
    assert "Which groups are new is not known." in page.content.decode()
    assert not rows_of(boss.get(PAGE, {"span": "7d"}))[0]["is_new"]


def test_what_is_new_is_known_where_a_day_was_read_in_full(boss, broker, monkeypatch):
    row = make()
    for ago, reason in ((3 * DAY, "New: x"), (2 * DAY, "Old: x"), (2 * HOUR, "Old: x"), (HOUR, "New: x")):
        fail(row, ago, reason)
    monkeypatch.setattr(failures, "MOST_READ", 3)
    page = boss.get(PAGE)
    assert "of the newest 3." in page.content.decode() and "is not known" not in page.content.decode()
    assert [(row["text"], row["is_new"]) for row in rows_of(page)] == [("New: x", True), ("Old: x", False)]


def test_a_group_leads_to_its_runs_and_schedules_in_their_lists(boss, broker):
    one, two, other = make("one"), make("two"), make("other")
    wanted = [fail(one, HOUR, "KeyError: 1"), fail(one, reason="KeyError: 2"), fail(two, reason="KeyError: 3")]
    old, gone = fail(other, 2 * DAY, "KeyError: 4"), fail(make("gone"), reason="KeyError: 5")
    fail(other, reason="ValueError: x")
    Schedule.objects.get(name="gone").delete()
    (row,) = (row for row in rows_of(boss.get(PAGE)) if row["count"] == 4)
    with CaptureQueriesContext(connection) as queries:
        found = boss.get(row["list"])
    assert len(queries) <= 16
    assert set(found.context["cl"].queryset.values_list("pk", flat=True)) == {one.pk, two.pk}
    assert "tests.app.tasks.noop: KeyError: #" in found.content.decode(), "the filter says what it is"
    assert set(boss.get(row["runs"]).context["cl"].queryset) == {*wanted, gone}
    (week,) = (row for row in rows_of(boss.get(PAGE, {"span": "7d"})) if row["count"] == 5)
    assert set(boss.get(week["runs"]).context["cl"].queryset) == {*wanted, gone, old}
    assert "error=" not in boss.get("/admin/django_delayq/schedule/").content.decode()


def test_of_too_many_schedules_those_that_had_the_error_last_are_listed_and_it_says_so(boss, broker, monkeypatch):
    last, first = make("last"), make("first")
    fail(first, HOUR, "KeyError: 1"), fail(last, reason="KeyError: 2")
    (row,) = rows_of(boss.get(PAGE))
    said = "More than 1 schedules have this error"
    page = boss.get(row["list"])
    assert set(page.context["cl"].queryset) == {last, first} and said not in page.content.decode()
    monkeypatch.setattr("django_delayq.admin.paging.MOST_FOUND", 1)
    page = boss.get(row["list"])
    assert list(page.context["cl"].queryset) == [last] and said in page.content.decode()
    page = boss.get(row["runs"])
    assert len(page.context["cl"].queryset) == 2 and said not in page.content.decode()


def test_a_group_that_is_gone_or_hidden_lists_nothing_and_says_so(boss, broker):
    fail(make("one"), reason="KeyError: 1")
    (row,) = rows_of(boss.get(PAGE))
    looks = client_for("view_schedule")
    for client, address in ((boss, f"{row['list']}0"), (boss, f"{row['runs']}0"), (looks, row["list"])):
        found = client.get(address)
        assert not found.context["cl"].queryset.exists() and "no such failures any more" in found.content.decode()
        assert "KeyError" not in found.content.decode() or client is boss
    assert rows_of(client_for("view_run").get(PAGE))[0]["list"] == ""


def test_five_schedules_are_named_with_links_to_those_that_are_there(boss, broker):
    schedules = [make(f"s{number}") for number in range(7)]
    for row in schedules:
        fail(row, (row.pk % 7) * MINUTE + MINUTE)
    newest = Run.objects.order_by("-finished_at").first().schedule
    name = newest.name
    newest.delete()
    (row,) = rows_of(boss.get(PAGE))
    assert len(row["schedules"]) == 5 and row["more"] == 2
    assert row["schedules"][0] == (name, "")
    assert all(address.endswith("/change/") for _, address in row["schedules"][1:])
    assert "and 2 more" in boss.get(PAGE).content.decode()
    (row,) = rows_of(client_for("view_run").get(PAGE))
    assert {address for _, address in row["schedules"]} == {""}, "who may not follow a link is given none"


def test_there_are_pages_of_groups(boss, broker, monkeypatch):
    monkeypatch.setattr(page_of_failures, "GROUPS_SHOWN", 2)
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
    for words in ("Run again", "Dismiss", "Retry all", "Delete all"):
        pages += [boss.get(address) for address in links(pages[0], words)]
    assert len(pages) == 10
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
    acts = {"Run again", "Dismiss", "Retry all", "Delete all", "/schedule/"}
    for codenames, wanted in (
        (["view_run"], set()), (["change_run"], {"Retry all", "Dismiss"}), (["view_run", "delete_run"], {"Delete all"}),
        (["view_run", "change_schedule"], {"Run again", "Dismiss", "/schedule/"}),
    ):  # fmt: skip
        page = client_for(*codenames).get(PAGE)
        assert page.status_code == 200 and len(rows_of(page)) == 2
        assert {words for words in acts if words in page.content.decode()} == wanted


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("Run again", "change_schedule"),
        ("Dismiss", "change_schedule"),
        ("Retry all", "change_run"),
        ("Delete all", "delete_run"),
    ],
)
def test_what_is_done_needs_the_permission_and_a_post(boss, built, words, needed):
    fail(make())
    make_job()

    def stands():
        return list(Run.objects.order_by("pk").values_list("pk", "status")), dismissed()

    page = boss.get(PAGE)
    address = links(page, words)[-1]
    asked, before = boss.get(address), stands()
    everything = {"change_run", "add_schedule", "change_schedule", "delete_run"}
    others = everything - ({"change_run", "change_schedule"} if words == "Dismiss" else {needed})
    for client in (client_for("view_run", "view_schedule", *others), client_for("change_schedule")):
        assert client.get(address).status_code == client.post(address, chosen(asked)).status_code == 403
    boss.get(address, chosen(asked))
    assert boss.put(address).status_code == 405
    assert stands() == before
    assert client_for("view_run", needed).post(address, chosen(asked)).status_code == 302
    assert stands() != before


@pytest.mark.parametrize("name", ["run-again", "dismiss"])
def test_a_group_that_is_gone_says_so(boss, broker, name):
    address = f"{PAGE}{'0' * 32}/{name}/"
    page = boss.get(address, follow=True)
    assert page.redirect_chain[-1][0].startswith(PAGE) and "no such failures" in texts(page)[0]
    assert boss.post(address, follow=True).status_code == 200
    assert not Run.objects.exists() and not dismissed()


def test_run_again_orders_one_run_of_each_schedule_that_is_there(boss, broker):
    one, two, gone, other = make("one"), make("two", enabled=False), make("gone"), make("other")
    for row in (one, one, two, gone):
        fail(row)
    fail(other, reason="Other: x")
    gone.delete()
    page = boss.get(PAGE)
    address = next(link for link, row in zip(links(page, "Run again"), rows_of(page), strict=True) if row["count"] == 4)
    asked = boss.get(address)
    assert sorted(asked.context["names"]) == ["one", "two"] and not Run.objects.filter(origin="manual").exists()
    done = boss.post(address, chosen(asked), follow=True)
    assert done.redirect_chain[-1][0] == f"{PAGE}?span=24h"
    assert texts(done) == ["2 runs are ordered."]
    assert sorted(Run.objects.filter(origin="manual").values_list("schedule_name", "status")) == [
        ("one", "queued"), ("two", "queued"),
    ]  # fmt: skip


def test_what_fails_after_it_was_asked_is_neither_run_again_nor_dismissed(boss, broker):
    fail(make("one"), HOUR)
    page = boss.get(PAGE)
    addresses = [links(page, words)[0] for words in ("Run again", "Dismiss")]
    asked = [boss.get(address) for address in addresses]
    fail(make("two"))
    for address, page in zip(addresses, asked, strict=True):
        boss.post(address, chosen(page))
    assert list(Run.objects.filter(origin="manual").values_list("schedule_name", flat=True)) == ["one"]
    assert len(rows_of(boss.get(PAGE))) == 1
    boss.post(addresses[1], chosen(boss.get(addresses[1])))
    assert rows_of(boss.get(PAGE)) == [] and dismissed() == 2
    assert "Nothing has failed that is not dismissed." in boss.get(PAGE).content.decode()


def test_more_than_are_done_at_once_are_refused_with_words(boss, broker, monkeypatch):
    monkeypatch.setattr(page_of_failures, "MOST_AT_ONCE", 2)
    schedules = [make(name) for name in "abc"]
    for row in schedules:
        fail(row)
    (address,) = links(boss.get(PAGE), "Run again")
    for page in (
        boss.get(address, follow=True),
        boss.post(address, {"_selected_action": [row.pk for row in schedules]}, follow=True),
    ):
        assert "At most 2 schedules" in texts(page)[0] and "Nothing was ordered" in texts(page)[0]
    assert not Run.objects.filter(origin="manual").exists()
    schedules[0].delete()
    assert boss.get(address).context["names"] == ["b", "c"], "what is gone does not count"
    for row in schedules[1:]:
        row.delete()
    assert "None of its schedules" in texts(boss.get(address, follow=True))[0]
    assert "None of its schedules" in texts(boss.post(address, {"_selected_action": ["x", "9" * 30]}, follow=True))[0]


# -- dismiss


def dismissed():
    """Return how many runs have a dismissed failure."""
    return Run.objects.filter(dismissed_until__isnull=False).count()


def test_a_dismissed_group_is_hidden_until_it_fails_again(boss, broker):
    row = make()
    fail(row, HOUR, "KeyError: 'a'")
    fail(row, HOUR, "Other: x")
    page = boss.get(PAGE)
    address = links(page, "Dismiss")[[each["text"] for each in rows_of(page)].index("KeyError: '…'")]
    asked = boss.get(address)
    assert "until it fails again" in asked.content.decode() and not dismissed()
    done = boss.post(address, chosen(asked), follow=True)
    assert texts(done) == ["It is dismissed until it fails again."]
    assert [each["text"] for each in rows_of(done)] == ["Other: x"]
    assert "1 failure, 1 group" in " ".join(done.content.decode().split())
    assert dismissed() == 1
    more = "?span=24h&dismissed=1"
    assert f'<a href="{html.escape(more)}">Show dismissed (1)</a>' in done.content.decode()
    everything = boss.get(f"{PAGE}{more}")
    assert len(rows_of(everything)) == 2 and ">dismissed<" in everything.content.decode()
    fail(row, MINUTE, "KeyError: 'b'")
    assert {each["text"]: each["count"] for each in rows_of(boss.get(PAGE))} == {"KeyError: '…'": 2, "Other: x": 1}


@pytest.mark.parametrize("until", [None, "", "nonsense", "2099-01-01T00:00:00", "9" * 400, "0001-01-01T00:00:00+23:59"])
def test_a_time_that_no_page_has_asked_with_dismisses_nothing(boss, broker, until):
    fail(make())
    (address,) = links(boss.get(PAGE), "Dismiss")
    boss.post(address, {} if until is None else {"until": until})
    assert not dismissed()


def test_nobody_dismisses_the_future(boss, broker):
    row = make()
    fail(row, HOUR)
    (address,) = links(boss.get(PAGE), "Dismiss")
    boss.post(address, {"until": (utcnow() + DAY).isoformat()})
    assert rows_of(boss.get(PAGE)) == []
    fail(row, MINUTE)
    assert len(rows_of(boss.get(PAGE))) == 1


def test_a_job_that_fails_again_after_a_retry_shows_its_group_again(boss, broker):
    job = make_job()
    (address,) = links(boss.get(PAGE), "Dismiss")
    boss.post(address, chosen(boss.get(address)))
    assert rows_of(boss.get(PAGE)) == []
    Run.objects.filter(pk=job.pk).update(finished_at=utcnow() + MINUTE)
    assert len(rows_of(boss.get(PAGE))) == 1


def test_a_group_whose_last_run_is_deleted_stays_dismissed(boss, broker):
    row = make()
    fail(row, HOUR)
    last = fail(row, MINUTE)
    (address,) = links(boss.get(PAGE), "Dismiss")
    boss.post(address, chosen(boss.get(address)))
    last.delete()
    assert rows_of(boss.get(PAGE)) == []


def test_jobs_are_groups_of_the_same_list_which_are_retried_or_deleted(boss, built):
    fail(make(task="tests.app.tasks.add", args=[1]), reason="RuntimeError: no user 7")
    jobs = [make_job(number, error=f"Traceback\nRuntimeError: no user {number}") for number in range(3)]
    make_job(error="Traceback\nOther: x", status="lost")
    page = boss.get(PAGE)
    groups = {(row["text"], row["of_jobs"]): row["count"] for row in rows_of(page)}
    assert groups == {
        ("RuntimeError: no user #", True): 3,
        ("Other: x", True): 1,
        ("RuntimeError: no user #", False): 1,
    }
    number = next(at for at, row in enumerate(rows_of(page)) if row["count"] == 3)
    assert rows_of(page)[number]["schedules"] == [] and not rows_of(page)[number]["list"]
    acts = {str(label): address for address, label in rows_of(page)[number]["acts"]}
    assert [*acts] == ["Retry all", "Delete all", "Dismiss"]
    listed = boss.get(rows_of(page)[number]["runs"]).context["cl"].result_list
    assert {run.pk for run in listed} == {job.pk for job in jobs}
    for address in (acts["Retry all"], acts["Delete all"]):
        asked = boss.get(address)
        assert "3 runs:" in asked.content.decode() and len(asked.context["names"]) == 3
    assert Run.objects.filter(status="failed").count() == 4, "asking does nothing"
    done = boss.post(acts["Delete all"], {"_selected_action": [jobs[0].pk], "apply": "1"}, follow=True)
    assert texts(done) == ["1 job is deleted."]
    done = boss.post(acts["Retry all"], chosen(boss.get(acts["Retry all"])), follow=True)
    assert done.redirect_chain[-1][0] == f"{PAGE}?span=24h" and texts(done) == ["2 jobs are tried again."]
    assert Run.objects.filter(origin="job", status="queued").count() == 2
    assert "no such failures" in texts(boss.get(acts["Retry all"], follow=True))[0]


def test_at_most_so_many_jobs_are_changed_at_once_and_the_page_that_asks_says_so(boss, built, monkeypatch):
    monkeypatch.setattr(page_of_failures, "MOST_AT_ONCE", 2)
    rows = [make_job(at=utcnow() - number * MINUTE) for number in range(5)]
    (address,) = links(boss.get(PAGE), "Delete all")
    asked = boss.get(address)
    assert "The newest 2 of 5 jobs:" in asked.content.decode()
    boss.post(address, chosen(asked))
    assert list(Run.objects.values_list("pk", flat=True).order_by("pk")) == [row.pk for row in rows[2:]]
    boss.post(address, {"_selected_action": [row.pk for row in rows[2:]]})
    assert Run.objects.count() == 1, "nor more than so many of what was posted"


def test_a_group_of_jobs_shows_no_secret_that_one_was_called_with(boss, built):
    make_job(kwargs={"password": "swordfish"}, error="Traceback\nValueError: swordfish refused")
    page = boss.get(PAGE)
    dismiss = boss.get(links(page, "Dismiss")[0])
    for shown in (page, dismiss, boss.get(rows_of(page)[0]["runs"])):
        assert "refused" in shown.content.decode() and "swordfish" not in shown.content.decode()
