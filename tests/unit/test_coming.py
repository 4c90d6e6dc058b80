"""What is to come, counted without a server: known recurrences, changes of the clock, bounds."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import count
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from django_delayq.ledger.rows import ScheduleRow, StateRow
from django_delayq.monitoring.coming import HOUR, Hours, count_by_hour, count_hours
from django_delayq.recurrence import Cron, Every, Once, Windowed

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)  # a Monday
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
_keys = count(1)


#: What is of the state.
OF_STATE = ("last_due_at", "last_finished_at", "run_count", "condition")


def plan(name: str = "", **values: object) -> ScheduleRow:
    pk = next(_keys)
    kind = "every" if "every" in values else "once" if "at" in values else "cron"
    names = [each.name for each in fields(ScheduleRow) if each.init]
    defaults: dict[str, object] = {
        **dict.fromkeys(names), "pk": pk, "name": name or f"s{pk}", "queue": "default", "kind": kind, "cron": "",
        "every_from": "due", "timezone": "UTC", "dst_gap": "run_after", "dst_overlap": "once", "jitter": timedelta(0),
        "enabled": True, "created_at": NOON - 30 * DAY, "effective_from": NOON - 30 * DAY,
    }  # fmt: skip
    state = StateRow(pk, **{name: values.pop(name) for name in OF_STATE if name in values})  # type: ignore[arg-type]
    return ScheduleRow(**{**defaults, **values, "state": state})  # type: ignore[arg-type]


def hours(*plans: ScheduleRow, first: datetime = NOON, number: int = 24, since: datetime = NOON) -> list[int]:
    return count_hours(plans, Hours(first, number, since))


def test_each_hour_has_the_points_that_fall_into_it() -> None:
    found = hours(plan(cron="0 0 * * *"), plan(cron="*/5 * * * *"), plan(cron="30 13 * * *"))
    assert found == [12, 13] + [12] * 10 + [13] + [12] * 11, "midnight is the thirteenth hour"


def test_what_has_passed_of_the_first_hour_does_not_count() -> None:
    found = hours(plan(cron="*/5 * * * *"), since=NOON + 31 * MINUTE)
    assert found[:2] == [5, 12]


def test_an_interval_goes_on_from_its_lattice_and_a_fixed_delay_from_its_last_end() -> None:
    odd = plan(every=timedelta(hours=7), created_at=NOON - timedelta(hours=20, minutes=30))
    assert [at for at, number in enumerate(hours(odd)) if number] == [0, 7, 14, 21]
    ended = NOON - timedelta(minutes=10)
    delay = plan(every=timedelta(hours=10), every_from="finish", last_finished_at=ended, last_due_at=ended - HOUR)
    assert [at for at, number in enumerate(hours(delay)) if number] == [9, 19]


def test_a_day_on_which_the_clock_jumps() -> None:
    riga = ZoneInfo("Europe/Riga")
    first = datetime(2026, 3, 29, 0, 0, tzinfo=riga).astimezone(UTC)  # 03:00 becomes 04:00
    gap = {"cron": "30 3 * * *", "timezone": "Europe/Riga", "effective_from": first - DAY}
    assert hours(plan(**gap), first=first, since=first)[3] == 1, "once, right after the gap"
    assert hours(plan(**gap, dst_gap="skip"), first=first, number=23, since=first) == [0] * 23
    first = datetime(2026, 10, 25, 0, 0, tzinfo=riga).astimezone(UTC)  # 04:00 becomes 03:00
    twice = {**gap, "effective_from": first - DAY}
    assert sum(hours(plan(**twice), first=first, number=25, since=first)) == 1
    assert hours(plan(**twice, dst_overlap="twice"), first=first, number=25, since=first)[3:5] == [1, 1]


def test_bounds_and_numbers_of_runs_end_it() -> None:
    minutely = {"cron": "* * * * *"}
    until = plan(**minutely, end_at=NOON + timedelta(hours=2, minutes=10))
    assert hours(until)[:4] == [60, 60, 11, 0]
    begins = plan(**minutely, start_at=NOON + timedelta(hours=1, minutes=58))
    assert hours(begins)[:3] == [0, 2, 60]
    assert hours(plan(**minutely, max_runs=100, run_count=30))[:3] == [60, 10, 0]
    assert hours(plan(cron="0 * * * *", max_runs=2))[:3] == [1, 1, 0]
    assert hours(plan(**minutely, max_runs=70))[:3] == [60, 10, 0]
    assert hours(plan(at=NOON + 3 * HOUR))[3] == 1
    assert hours(plan(**minutely, effective_from=NOON + 3 * HOUR))[:4] == [0, 0, 0, 59]


def test_what_cannot_be_computed_is_left_out() -> None:
    assert hours(plan(cron="not a cron"), plan(cron="0 * * * *", timezone="No/Where")) == [0] * 24


def test_the_same_definition_is_counted_for_all_that_have_it() -> None:
    same = [plan(cron="0 3 * * *"), plan(cron="00 3 * * *"), plan(cron="0 3 * * *", end_at=NOON + 9 * DAY)]
    assert hours(*same)[15] == 3
    others = [plan(cron="0 3 * * *", timezone="Asia/Tokyo"), plan(cron="0 3 * * 1"), plan(cron="0 4 * * *")]
    found = hours(*same, *others)
    assert (found[6], found[15], found[16]) == (1, 3, 1)


RULES = st.one_of(
    st.sampled_from([
        "* * * * *", "*/7 * * * *", "0 0 * * *", "15,45 3-9 * * 1-5", "30 2 * * *", "*/10 * * * * *", "0 5 1 * *",
        "10-20 0 0 * * *",
    ]).flatmap(lambda cron: st.sampled_from(["UTC", "Europe/Riga", "Asia/Kolkata"]).map(lambda zone: Cron(cron, zone))),
    st.builds(
        lambda seconds, anchor: Every(timedelta(seconds=seconds), NOON + timedelta(seconds=anchor)),
        st.integers(1, 200_000) | st.sampled_from([1, 10, 30, 60, 90, 600, 3600]), st.sampled_from([0, 17, -0.000001]),
    ),
    st.integers(0, 200_000).map(lambda seconds: Once(NOON + timedelta(seconds=seconds))),
)  # fmt: skip


@example(Every(timedelta(seconds=30), NOON), 0, 5, 0)
@example(Every(timedelta(seconds=60), NOON), 0, 5, 0)
@given(RULES, st.integers(0, 400), st.integers(1, 30), st.integers(0, 90))
def test_an_hour_has_as_many_points_as_the_recurrence_counts_in_it(
    rule: object, day: int, number: int, passed: int
) -> None:
    first = NOON + day * DAY
    shown = Hours(first, number, first + passed * MINUTE)
    found = count_by_hour(rule, shown)  # type: ignore[arg-type]
    for at in range(number):
        begin, end = first + at * HOUR, first + (at + 1) * HOUR
        wanted = rule.count_between(max(begin, shown.since), end - timedelta(microseconds=1))  # type: ignore[attr-defined]
        assert found.get(at, 0) == max(0, wanted)
    assert all(0 <= at < number and each for at, each in found.items())
    kept = count_by_hour(Windowed(rule, start=first), shown, most=5)  # type: ignore[arg-type]
    assert sum(kept.values()) == min(5, sum(found.values()))
