"""The next due points say what is remarkable about them, and an edit never makes one in the past."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils import translation

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.models import Condition, Schedule, ScheduleState, Status
from tests.integration.admin_pages import change_url, fields, make
from tests.support import DAY

SPRING = datetime(2027, 3, 27, 12, tzinfo=UTC)  # Riga: 2027-03-28 03:00 → 04:00
AUTUMN = datetime(2027, 10, 30, 12, tzinfo=UTC)  # Riga: 2027-10-31 04:00 → 03:00
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


def unsaved(cron: str = "30 3 * * *", **values: object) -> Schedule:
    defaults = {"name": "s", "task": "tests.app.tasks.noop", "kind": "cron", "cron": cron, "timezone": "Europe/Riga"}
    return Schedule(**{**defaults, "created_at": LONG_AGO, "effective_from": LONG_AGO, **values})


def shown(schedule: Schedule, start: datetime, n: int = 2) -> list[tuple[str, tuple[str, ...]]]:
    return [(f"{point.local:%d %H:%M %Z}", point.annotations) for point in schedule.preview(n, start)]


CASES = [
    ({}, SPRING, [("28 04:00 EEST", ("03:30 does not exist on this day, runs at 04:00",)), ("29 03:30 EEST", ())]),
    ({"dst_gap": "skip"}, SPRING,
     [("29 03:30 EEST", ("2027-03-28 03:30 does not exist, skipped",)), ("30 03:30 EEST", ())]),
    ({"cron": "30 3,4 * * *", "dst_gap": "skip"}, SPRING,
     [("28 04:30 EEST", ("03:30 does not exist on this day, skipped",)), ("29 03:30 EEST", ())]),
    ({"cron": "0,10,20 3 * * *"}, SPRING,
     [("28 04:00 EEST", ("03:00 and 2 more times do not exist on this day, runs once at 04:00",)),
      ("29 03:00 EEST", ())]),
    ({"cron": "30 * * * *"}, SPRING + timedelta(hours=12), [("28 02:30 EET", ()), ("28 04:30 EEST", ())]),
    ({}, AUTUMN, [("31 03:30 EEST", ("03:30 occurs twice on this day, runs the first time",)), ("01 03:30 EET", ())]),
    ({"dst_overlap": "twice"}, AUTUMN,
     [("31 03:30 EEST", ("first of two: 03:30 occurs twice on this day",)),
      ("31 03:30 EET", ("second of two: 03:30 occurs twice on this day",))]),
    ({"cron": "0 12 * * *", "timezone": "Pacific/Apia"}, datetime(2011, 12, 29, 12, tzinfo=UTC),
     [("29 12:00 -10", ()), ("31 12:00 +14", ("2011-12-30 12:00 does not exist, skipped",))]),
    ({"end_at": SPRING + 2 * DAY}, SPRING + DAY,
     [("29 03:30 EEST", ()), ("30 03:30 EEST", ("skipped: end reached",))]),
    ({"max_runs": 1}, SPRING + DAY,
     [("29 03:30 EEST", ()), ("30 03:30 EEST", ("skipped: end reached, it runs 1 time",))]),
    ({"kind": "once", "cron": "", "at": SPRING + timedelta(hours=1)}, SPRING, [("27 15:00 EET", ())]),
    ({"kind": "every", "cron": "", "every": 1.5 * DAY}, SPRING, [("28 02:00 EET", ()), ("29 15:00 EEST", ())]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "start", "expected"), CASES)
def test_a_point_says_what_the_clock_and_the_end_do_to_it(values, start, expected):
    assert shown(unsaved(**values), start) == expected


def test_points_are_aware_in_utc_and_in_the_zone_and_only_the_one_beyond_the_end_does_not_run():
    first, beyond = unsaved(max_runs=1).preview(5, SPRING)
    assert first.due_at == datetime(2027, 3, 28, 1, tzinfo=UTC) == first.wake_at
    assert first.due_at.tzinfo is UTC
    assert first.local.tzinfo == ZoneInfo("Europe/Riga")
    assert (first.runs, beyond.runs) == (True, False)


def test_jitter_moves_the_wake_and_says_so():
    (point,) = unsaved(cron="0 12 * * *", jitter=timedelta(minutes=5)).preview(1, SPRING)
    assert timedelta(0) < point.wake_at - point.due_at < timedelta(minutes=5)
    wake = point.wake_at.astimezone(ZoneInfo("Europe/Riga"))
    assert point.annotations == (f"starts at {wake:%H:%M:%S}.{wake.microsecond // 1000:03} (jitter)",)


@pytest.mark.django_db
def test_the_admin_speaks_german(boss):
    schedule = make(cron="0 9 * * 1-5")
    with translation.override("de"):
        assert (str(Status.SUCCEEDED.label), str(Condition.BROKEN.label)) == ("erfolgreich", "stillgelegt")
        assert str(Schedule.Kind.EVERY.label) == "Intervall"
        assert unsaved().preview(1, SPRING)[0].annotations == ("03:30 gibt es an diesem Tag nicht, läuft um 04:00",)
        page = boss.get(change_url(schedule)).content.decode()
    for text in ("Auf einen Blick", "um 09:00, Montag bis Freitag, UTC", "Nächste Fälligkeiten", "eingeschaltet"):
        assert text in page


def test_the_preview_begins_after_what_is_decided_and_counts_what_has_run():
    schedule = unsaved(max_runs=3)
    schedule.state = ScheduleState(last_due_at=SPRING + timedelta(days=10), run_count=2)
    found = schedule.preview(5, SPRING)
    assert [point.runs for point in found] == [True, False]
    assert found[0].due_at > SPRING + timedelta(days=10)


def test_a_fixed_delay_is_counted_from_the_last_finish():
    schedule = unsaved(kind="every", cron="", every=timedelta(hours=1), every_from="finish")
    schedule.state = ScheduleState(last_finished_at=SPRING + timedelta(minutes=7))
    assert schedule.preview(1, SPRING)[0].due_at == SPRING + timedelta(minutes=67)


def test_a_preview_ends_with_the_calendar_and_refuses_what_is_no_recurrence():
    assert unsaved(timezone="Pacific/Kiritimati").preview(5, datetime(9999, 12, 31, 23, tzinfo=UTC)) == []
    with pytest.raises(InvalidRecurrence):
        unsaved("61 * * * *").preview(1, SPRING)
    with pytest.raises(InvalidRecurrence):
        unsaved(timezone="Nowhere/Land", kind="every", cron="", every=timedelta(hours=1)).preview(1, SPRING)


EDITS = [
    {"cron": "* * * * * *"},
    {"kind": "every", "cron": "", "every": timedelta(seconds=1)},
    {"kind": "every", "cron": "", "every": timedelta(hours=1), "every_from": "finish"},
    {"start_at": datetime(2020, 1, 1, tzinfo=UTC)},
    {"max_runs": 5},
    {"dst_gap": "skip"},
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: "-".join(edit))
@pytest.mark.parametrize("bulk", [False, True], ids=["save", "update"])
def test_an_edit_never_makes_a_due_point_in_the_past(broker, edit, bulk):
    schedule = make(cron="0 9 * * *", timezone="UTC")
    long_ago = datetime.now(UTC) - timedelta(days=400)
    Schedule._base_manager.update(created_at=long_ago, effective_from=long_ago)
    before = datetime.now(UTC)
    if bulk:
        Schedule.objects.filter(pk=schedule.pk).update(**edit)
    else:
        row = Schedule.objects.get()
        for name, value in edit.items():
            setattr(row, name, value)
        row.save()
    row = Schedule.objects.select_related("state").get()
    assert row.effective_from >= before
    assert row.state.next_due_at > before
    assert row.preview(1)[0].due_at > before
    assert row.preview(1, long_ago)[0].due_at > before
    view = broker.read_views([(f"s{row.pk}", "default")])[0]
    assert view.point_ms > before.timestamp() * 1000
    assert view.score_ms >= view.point_ms


@pytest.mark.django_db(transaction=True)
def test_neither_a_pause_nor_a_resume_makes_a_due_point_in_the_past(broker):
    make(kind="every", cron="", every=timedelta(minutes=1))
    Schedule._base_manager.update(effective_from=LONG_AGO, created_at=LONG_AGO)
    Schedule.objects.get().pause()
    before = datetime.now(UTC)
    Schedule.objects.get().resume()
    assert Schedule.objects.get().state.next_due_at > before


@pytest.mark.django_db(transaction=True)
def test_the_form_shows_the_points_before_and_after_the_edit(boss):
    schedule = make(cron="15 4 * * *", timezone="UTC")
    page = boss.get(change_url(schedule)).content.decode()
    assert "After saving" not in page and page.count("04:15:00 UTC</td>") == 5
    url = change_url(schedule).replace("change", "preview")
    typed = fields(name="s", cron="45 5 * * *", timezone="UTC")
    for shown_now in (boss.post(url, typed).json()["upcoming"], boss.post(change_url(schedule), typed | {"task": ""})):
        text = shown_now if isinstance(shown_now, str) else shown_now.content.decode()
        now, after = text.split("After saving:")
        assert now.count("04:15:00 UTC</td>") == 5 and "05:45:00 UTC</td>" not in now
        assert after.count("05:45:00 UTC</td>") == 5 and "04:15:00 UTC</td>" not in after
    assert Schedule.objects.get().cron == "15 4 * * *"


@pytest.mark.django_db(transaction=True)
def test_beside_a_mistake_the_points_of_the_saved_row_stay(boss):
    schedule = make(cron="15 4 * * *", timezone="UTC")
    typed = fields(cron="61 4 * * *", timezone="UTC")
    shown_now = boss.post(change_url(schedule).replace("change", "preview"), typed).json()["upcoming"]
    assert "delayq-problem" in shown_now and "Now:" in shown_now and shown_now.count("04:15:00 UTC</td>") == 5
    page = boss.post(change_url(schedule), typed).content.decode()
    assert page.count("04:15:00 UTC</td>") == 5


@pytest.mark.django_db(transaction=True)
def test_after_saving_a_fixed_delay_counts_from_the_edit(boss):
    schedule = make(kind="every", cron="", every=timedelta(hours=100))
    Schedule._base_manager.update(created_at=LONG_AGO, effective_from=LONG_AGO)
    finished = datetime.now(UTC) - timedelta(minutes=90)
    ScheduleState.objects.update_or_create(schedule=schedule, defaults={"last_finished_at": finished})
    typed = fields(kind="every", cron="", every="2h", every_from="finish")
    shown_now = boss.post(change_url(schedule).replace("change", "preview"), typed).json()["upcoming"]
    after = shown_now.split("After saving:")[1]
    assert after[after.index('delayq-note">in ') :].startswith(('delayq-note">in 1h 5', 'delayq-note">in 2h<'))


@pytest.mark.django_db(transaction=True)
def test_the_form_shows_the_annotations_what_the_end_cuts_off_and_a_pause(boss):
    schedule = make(cron="0 9 * * *", timezone="UTC", max_runs=2, jitter=timedelta(minutes=5), enabled=False)
    page = boss.get(change_url(schedule)).content.decode()
    assert page.count("(jitter)") == 2
    assert page.count("<s>") == 1
    assert "skipped: end reached, it runs 2 times" in page and "none of these will run" in page
