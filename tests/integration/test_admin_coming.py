"""Coming up: the map of the next hours, the minutes of one, spreading them; and a month of one schedule."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_delayq.admin import coming as pages
from django_delayq.admin import month as month_page
from django_delayq.admin import spreading
from django_delayq.coming import sample
from django_delayq.models import Condition, Run, Schedule, ScheduleState
from tests.integration.admin_pages import HOSTILE, LIST, change_url, client_for, make, texts

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/django_delayq/overview/coming/"
SPREAD = f"{PAGE}spread/"
NOW = datetime(2026, 5, 4, 12, 20, 30, tzinfo=UTC)  # a Monday
MIDNIGHT = "2026-05-05T00:00Z"


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The pages believe that it is NOW."""
    for module in (pages, month_page, spreading):
        monkeypatch.setattr(module, "utcnow", lambda: NOW)


def old(name: str, **values: object) -> Schedule:
    """Return a schedule that has been there for a month."""
    row = make(name, **{"timezone": "UTC", **values})
    month_ago = NOW - timedelta(days=30)
    Schedule._base_manager.filter(pk=row.pk).update(created_at=month_ago, effective_from=month_ago)
    row.refresh_from_db()
    return row


def crowd(number: int, cron: str = "0 0 * * *", **values: object) -> list[Schedule]:
    return [old(f"{values.get('queue', 'd')}{each:03}", cron=cron, **values) for each in range(number)]


def shown(client: Client, **query: str) -> str:
    response = client.get(PAGE, query)
    assert response.status_code == 200
    return unescape(response.content.decode())


def heat(page: str) -> dict[str, list[str]]:
    """Return the texts of the map's cells by the name of their row."""
    body = re.search(r'<table class="delayq-heat">.*?</table>', page, re.S)
    assert body is not None
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', body[0])
    return {name: [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", row)] for name, row in rows}


def test_the_map_has_an_hour_for_each_column_and_names_the_peaks(boss):
    crowd(12), crowd(5, "30 14 * * *", queue="mail"), old("busy", cron="*/10 * * * *")
    old("off", enabled=False, cron="* * * * *")
    ended = old("ended", cron="* * * * *")
    ScheduleState.objects.filter(schedule=ended).update(condition=Condition.EXHAUSTED)
    page = shown(boss)
    rows = heat(page)
    assert rows["default"] == ["4", *["6"] * 11, "18", *["6"] * 11] and rows["mail"] == ["", "", "5"] + [""] * 21
    assert re.findall(r'class="delayq-peak" href="(.*?)">(.*?)</a>', page)[:2] == [
        ("?hour=2026-05-05T00%3A00Z&minute=0", "13 at 00:00"), ("?hour=2026-05-04T14%3A00Z&minute=30", "6 at 14:30"),
    ]  # fmt: skip
    assert 'title="18 from Tue 00:00 on"' in page and "delayq-heat-6" in page and "stimated" not in page
    line = r'<tr><th scope="row"><a href="[^"]+">(.*?)</a></th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>'
    table = re.findall(line, page)
    assert table[2] == ("Mon 2026-05-04 14:00", "6", "5", "11") and len(table) == 24
    assert f'href="{PAGE}"' in boss.get("/admin/django_delayq/overview/").content.decode()


def test_seven_days_are_a_row_each(boss):
    old("weekly", cron="0 9 * * 3"), old("hourly", cron="5 * * * *", queue="mail")
    page = shown(boss, span="7d")
    rows = heat(page)
    assert "1 at Mon 13:05" in page
    assert next(iter(rows)) == "Mon 2026-05-04" and len(rows) == 8
    assert rows["Mon 2026-05-04"] == [""] * 13 + ["1"] * 11, "what has passed of today is not there"
    assert rows["Wed 2026-05-06"][9] == "2" and rows["Tue 2026-05-05"] == ["1"] * 24
    assert rows["Mon 2026-05-11"] == ["1"] * 12 + [""] * 12


def test_numbers_are_those_of_the_clock_of_the_project(boss):
    old("nine", cron="0 9 * * *", timezone="Asia/Kolkata")
    with timezone.override("Asia/Kolkata"):
        page = shown(boss)
    assert "1 at 09:00" in page and "Times of Asia/Kolkata." in page
    assert heat(page)["default"] == [""] * 16 + ["1"] + [""] * 7


def test_nothing_to_come_is_said(boss):
    make("off", enabled=False)
    assert "Nothing falls due in this time." in shown(boss)


def test_an_hour_has_its_minutes_and_the_first_twenty_names_of_the_busiest(boss):
    rows = crowd(25)
    old("late", cron="30 0 * * *")
    page = shown(boss, hour=MIDNIGHT)
    assert re.findall(r'<th scope="row"><a href="[^"]+">(.*?)</a></th><td>(.*?)</td>', page) == [
        ("00:00", "25"), ("00:30", "1"),
    ]  # fmt: skip
    assert "<title>00:00 starts 25</title>" in page and "00:00: 25" in page
    links = re.findall(rf'<a href="{LIST}\d+/change/">(.*?)</a>', page)
    assert links == [row.name for row in rows[:20]] and "and the other 5 of this minute" in page
    assert "Start at 00:00: 25." in page and "default 25" in page, "the answer, and which queue is to do it"
    page = shown(boss, hour=MIDNIGHT, minute="30")
    assert re.findall(rf'<a href="{LIST}\d+/change/">(.*?)</a>', page) == ["late"]
    assert "and the others" not in page


@pytest.mark.parametrize(
    "hour", ["x", HOSTILE, "2020-01-01T00:00Z", "9999-12-31T23:59-14:00", "0001-01-01T00:00+14:00"]
)
def test_an_address_that_names_no_hour_to_come_shows_the_map(boss, hour):
    old("a")
    page = boss.get(PAGE, {"hour": hour, "span": hour, "minute": hour}).content.decode()
    assert "delayq-heat" in page and HOSTILE not in page
    assert boss.get(PAGE, {"hour": MIDNIGHT, "minute": hour}).status_code == 200


def chosen(rows, **values: str) -> dict[str, object]:
    return {
        "hour": MIDNIGHT,
        "minute": "0",
        "how": "jitter",
        "jitter": "10m",
        "chosen": [row.pk for row in rows],
        **values,
    }


def hidden(page: str) -> dict[str, list[str]]:
    """Return what the form that asks posts again."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page):
        found.setdefault(name, []).append(unescape(value))
    return found


def test_jitter_spreads_what_was_chosen_after_before_and_after_were_shown(boss):
    rows = crowd(12)
    page = unescape(boss.post(SPREAD, chosen(rows[:10])).content.decode())
    assert "Spread 10 schedules" in page and "<title>00:00 others 2, chosen 10</title>" in page
    after = page[page.index("<h2>After</h2>") :]
    assert "<title>00:00 others 2" in after and "at most 10 of them" not in after
    table = re.findall(r'<th scope="row">(00:\d\d)</th><td>(\d+)</td><td>(\d+)</td>', page)
    assert sum(int(was) for _, was, _ in table) == sum(int(becomes) for _, _, becomes in table) == 10
    assert not Schedule.objects.filter(jitter__gt=timedelta(0)).exists() and not LogEntry.objects.exists(), "it asks"
    response = boss.post(SPREAD, {**hidden(page), "apply": "1"}, follow=True)
    assert texts(response) == ["10 schedules are spread."]
    assert set(Schedule.objects.filter(jitter=timedelta(minutes=10))) == set(rows[:10])
    assert {entry.get_change_message() for entry in LogEntry.objects.all()} == {"Spread: jitter 10m."}
    assert LogEntry.objects.count() == 10 and LogEntry.objects.first().get_edited_object() in rows
    line = r'<th scope="row"><a href="[^"]+">(.*?)</a></th><td>(.*?)</td>'
    wanted = Counter({time: int(becomes) for time, _, becomes in table}) + Counter({"00:00": 2})
    assert {time: int(each) for time, each in re.findall(line, shown(boss, hour=MIDNIGHT))} == wanted


def test_h_takes_the_place_of_a_fixed_minute_and_what_has_none_stays(boss):
    rows = [*crowd(3), old("list", cron="0,30 0 * * *"), old("every", kind="every", cron="", every=timedelta(hours=1))]
    before = {row.pk: row.generation for row in rows}
    page = unescape(boss.post(SPREAD, chosen(rows, how="hash")).content.decode())
    assert "Spread 3 schedules" in page and "list: It has no cron expression with one fixed minute." in page
    assert Schedule.objects.filter(cron="0 0 * * *").count() == 3
    assert texts(boss.post(SPREAD, {**hidden(page), "apply": "1"}, follow=True)) == ["3 schedules are spread."]
    assert sorted(Schedule.objects.values_list("cron", flat=True)) == ["", "0,30 0 * * *", *["H 0 * * *"] * 3]
    assert [row.generation > before[row.pk] for row in Schedule.objects.order_by("pk")] == [True] * 3 + [False] * 2
    assert {entry.get_change_message() for entry in LogEntry.objects.all()} == {"Spread: H 0 * * *."}


def test_what_the_model_refuses_is_told_and_stays_as_it_is(boss):
    rows = [old("good"), old("dense", cron="*/5 * * * *"), old("gone", task="tests.app.tasks.noop")]
    Schedule._base_manager.filter(name="gone").update(task="no.such.task")
    page = unescape(boss.post(SPREAD, chosen(rows)).content.decode())
    assert "Spread 1 schedule<" in page and "dense: Jitter must be shorter than the gap" in page
    assert "gone: " in page
    said = texts(boss.post(SPREAD, {**chosen(rows), "apply": "1"}, follow=True))
    assert said[0] == "1 schedule is spread." and len(said) == 3
    assert list(Schedule.objects.filter(jitter__gt=timedelta(0)).values_list("name", flat=True)) == ["good"]


def test_all_others_of_the_minute_are_spread_too_but_no_more_than_a_hundred(boss):
    rows = crowd(30)
    page = unescape(boss.post(SPREAD, chosen(rows[:2], everyone="1")).content.decode())
    assert "Spread 30 schedules" in page
    crowd(71, queue="mail")
    for values in (chosen(rows, everyone="1"), {**chosen(Schedule.objects.all()), "apply": "1"}):
        assert "At most 100 schedules are spread at once" in texts(boss.post(SPREAD, values, follow=True))[0]
    assert not Schedule.objects.filter(jitter__gt=timedelta(0)).exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"chosen": []}, "No schedule was chosen."), ({"chosen": ["x", "9" * 40]}, "No schedule was chosen."),
        ({"hour": "2020-01-01T00:00Z"}, "This hour has passed."), ({"minute": "60"}, "This hour has passed."),
    ],
)  # fmt: skip
def test_what_makes_no_sense_changes_nothing(boss, values, said):
    rows = crowd(1)
    response = boss.post(SPREAD, {**chosen(rows), "apply": "1", **values}, follow=True)
    assert said in texts(response)[0] and not LogEntry.objects.exists()


@pytest.mark.parametrize("values", [{"jitter": "x"}, {"jitter": ""}, {"jitter": "2d"}, {"jitter": "1s"}, {"how": "x"}])
def test_what_is_typed_wrongly_is_shown_again(boss, values):
    rows = crowd(1)
    response = boss.post(SPREAD, {**chosen(rows), "apply": "1", **values})
    assert response.status_code == 200 and "errorlist" in response.content.decode() and not LogEntry.objects.exists()


def test_only_who_may_change_schedules_spreads_them_and_only_by_a_post(boss):
    rows = crowd(2)
    viewer = client_for("view_schedule")
    assert viewer.get(PAGE).status_code == 200 and client_for("view_run").get(PAGE).status_code == 403
    assert Client().get(PAGE).status_code == Client().post(SPREAD, chosen(rows)).status_code == 302
    assert SPREAD not in shown(viewer, hour=MIDNIGHT) and SPREAD in shown(boss, hour=MIDNIGHT)
    assert 'type="checkbox"' not in shown(viewer, hour=MIDNIGHT)
    assert viewer.post(SPREAD, {**chosen(rows), "apply": "1"}).status_code == 403
    assert boss.get(SPREAD, {**chosen(rows), "apply": "1"}).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    assert strict.post(SPREAD, {**chosen(rows), "apply": "1"}).status_code == 403
    assert not Schedule.objects.filter(jitter__gt=timedelta(0)).exists()
    changer = client_for("view_schedule", "change_schedule")
    assert changer.post(SPREAD, {**chosen(rows), "apply": "1"}).status_code == 302
    assert Schedule.objects.filter(jitter__gt=timedelta(0)).count() == 2


def test_hostile_names_stay_texts_and_nothing_is_inline(boss):
    row = old(HOSTILE)
    Schedule._base_manager.filter(pk=row.pk).update(queue=HOSTILE, cron="0 0 * * *")
    answers = [
        boss.get(PAGE), boss.get(PAGE, {"span": "7d"}), boss.get(PAGE, {"hour": MIDNIGHT}),
        boss.post(SPREAD, chosen([row])), boss.post(SPREAD, chosen([row], jitter=HOSTILE)),
        boss.post(SPREAD, chosen([row], how="hash")), boss.get(f"{LIST}{row.pk}/month/"),
    ]  # fmt: skip
    for answer in answers:
        page = answer.content.decode()
        assert answer.status_code == 200 and HOSTILE not in page
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>\s*\S", page) and "<style" not in page
        assert not re.search(r"\s(style|on\w+)=\"", page)
    assert "&lt;script&gt;" in answers[0].content.decode()


def test_of_many_schedules_a_sample_is_looked_at_and_the_page_says_so(boss, monkeypatch):
    monkeypatch.setattr(sample, "MOST_READ", 30)
    monkeypatch.setattr(sample, "DRAWN_FIRST", 40)
    monkeypatch.setattr(sample, "DRAWN_AT_MOST", 50)
    crowd(200)
    page = shown(boss)
    assert "Estimated from 40 of about 200 schedules." in page
    assert heat(page)["default"][12] == "200" and "200 at 00:00" in page
    Schedule._base_manager.filter(pk__in=list(Schedule.objects.values_list("pk", flat=True)[::2])).update(enabled=False)
    found = re.search(r"Estimated from (\d+) of about (\d+) schedules.", shown(boss))
    assert found is not None and 10 <= int(found[1]) <= 40 and 50 <= int(found[2]) <= 150
    Schedule._base_manager.filter(name__lt="d180").update(enabled=False)
    assert "stimated" not in shown(boss), "few of them are enabled: all of those are read"


def test_of_a_sample_a_minute_also_names_those_that_were_not_drawn_but_are_due_then(boss, monkeypatch):
    monkeypatch.setattr(sample, "MOST_READ", 10)
    monkeypatch.setattr(sample, "DRAWN_FIRST", 12)
    monkeypatch.setattr(sample, "DRAWN_AT_MOST", 12)
    rows = crowd(60)
    due = datetime(2026, 5, 5, tzinfo=UTC)
    for row in rows:
        ScheduleState.objects.update_or_create(schedule=row, defaults={"next_due_at": due})
    page = shown(boss, hour=MIDNIGHT)
    assert "00:00: 60" in page and "and the others of this minute that were found" in page
    page = unescape(boss.post(SPREAD, chosen(rows[:1], everyone="1")).content.decode())
    assert "Spread 60 schedules" in page and "<title>00:00 chosen 60</title>" in page, "nothing that is estimated"


@pytest.mark.parametrize("query", [{}, {"span": "7d"}, {"hour": MIDNIGHT}])
@pytest.mark.parametrize("most", [2, 2000])
def test_it_asks_the_database_seldom(boss, monkeypatch, query, most):
    monkeypatch.setattr(sample, "MOST_READ", most)
    monkeypatch.setattr(sample, "DRAWN_FIRST", 3)
    crowd(30)
    shown(boss, **query)
    with CaptureQueriesContext(connection) as captured:
        shown(boss, **query)
    assert len(captured) <= 10, [each["sql"][:100] for each in captured]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="asks PostgreSQL how it finds rows")
def test_a_sample_is_found_by_indexes(boss, monkeypatch):
    monkeypatch.setattr(sample, "MOST_READ", 10)
    crowd(50)
    with CaptureQueriesContext(connection) as captured:
        shown(boss, hour=MIDNIGHT)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("SET enable_seqscan = off")
        try:
            for query in captured:
                if "django_delayq_schedule" in query["sql"]:
                    cursor.execute(f"EXPLAIN {query['sql']}")
                    plan = "\n".join(line for (line,) in cursor.fetchall())
                    assert "Seq Scan on django_delayq" not in plan, query["sql"]
        finally:
            cursor.execute("RESET enable_seqscan")


# A month of one schedule


def month(client: Client, schedule: Schedule, status: int = 200) -> str:
    response = client.get(f"{LIST}{schedule.pk}/month/")
    assert response.status_code == status
    return unescape(response.content.decode())


def days(page: str) -> dict[str, str]:
    """Return what each day says."""
    cells = re.findall(r"<td[^>]*><div>(.*?)</div>(.*?)</td>", page)
    return {re.sub("<.*?>", "", day): " ".join(re.sub("<.*?>", " ", rest).split()) for day, rest in cells}


def test_a_month_has_outcomes_with_a_link_to_their_runs_and_what_is_planned(boss):
    schedule = old("s", cron="0 */6 * * *")
    for hours, status, points in ((1, "succeeded", 1), (7, "failed", 1), (30, "succeeded", 1), (31, "skipped", 9)):
        Run.of(schedule, NOW - timedelta(hours=hours), status=status, points=points).save()
    Run.of(old("other"), NOW - timedelta(hours=2), status="lost").save()
    page = month(boss, schedule)
    found = days(page)
    assert found["05-04"] == "1 failed 1 succeeded 1 planned" and found["05-03"] == "9 skipped 1 succeeded"
    assert found["05-05"] == "4 planned" and found["05-19"] == "4 planned" and found["05-02"] == "" and len(found) == 31
    link = re.search(r'href="(/admin/django_delayq/run/[^"]+)">05-03<', page)
    assert link is not None and boss.get(link[1]).context["cl"].result_count == 2
    assert f"{LIST}{schedule.pk}/month/" in boss.get(change_url(schedule)).content.decode()


def test_a_month_of_what_is_paused_or_broken_has_its_past(boss):
    schedule = old("s", enabled=False)
    Run.of(schedule, NOW - timedelta(hours=30), status="succeeded").save()
    page = month(boss, schedule)
    assert "nothing is planned" in page and days(page)["05-03"] == "1 succeeded" and " planned<" not in page
    Schedule._base_manager.update(enabled=True, cron="not a cron")
    page = month(boss, schedule)
    assert "delayq-problem" in page and days(page)["05-03"] == "1 succeeded"
    Schedule._base_manager.update(timezone="No/Where", cron="0 9 * * *")
    assert "delayq-problem" in month(boss, schedule)


def test_a_long_history_is_counted_so_far_and_that_is_said(boss, monkeypatch):
    monkeypatch.setattr(month_page, "MOST_COUNTED", 3)
    schedule = old("s")
    for hours in range(1, 6):
        Run.of(schedule, NOW - timedelta(hours=hours), status="succeeded").save()
    page = month(boss, schedule)
    assert "Only its newest 3 runs are counted" in page and days(page)["05-04"].startswith("3 succeeded")


def test_runs_of_a_month_are_for_those_only_who_may_see_them(boss):
    schedule = old("s")
    Run.of(schedule, NOW - timedelta(hours=1), status="succeeded").save()
    page = month(client_for("view_schedule"), schedule)
    assert "succeeded" not in page and "1 planned" in page
    month(client_for("view_run"), schedule, status=403)
    assert boss.get(f"{LIST}{2**70}/month/").status_code == boss.get(f"{LIST}9999/month/").status_code == 404
    with CaptureQueriesContext(connection) as captured:
        month(boss, schedule)
    assert len(captured) <= 6
