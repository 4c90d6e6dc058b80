"""What is decided about a claimed point: on time, overlapped, missed; and that deciding always comes to an end."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.recurrence import (
    Cron,
    Every,
    Execute,
    Once,
    Policies,
    Recurrence,
    Skip,
    Windowed,
    compute_wake,
    cron,
    decide,
    decide_all,
    is_too_old,
)

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
MINUTELY = Cron("* * * * *", "Europe/Riga")
HOURLY = Cron("0 * * * *", "Europe/Riga")
RUN = "run"


def at(text: str) -> datetime:
    """Return an instant of 2026-11-21, or of the day that the text begins with."""
    if " " not in text:
        text = f"2026-11-21 {text}"
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def outcome(decision: Execute | Skip) -> object:
    if isinstance(decision, Execute):
        return RUN
    resume = f"{decision.resume_at:%H:%M:%S}" if decision.resume_at else None
    return f"{decision.first:%H:%M:%S}", f"{decision.last:%H:%M:%S}", decision.points, decision.reason, resume


def follow(
    recurrence: Recurrence,
    point: datetime,
    now: datetime,
    busy: tuple[datetime | None, datetime | None],
    policies: Policies,
) -> tuple[list[Skip], datetime | None]:
    """Decide and resume until a point runs, lies ahead, or there is none; return the skips and that point."""
    skips: list[Skip] = []
    current: datetime | None = point
    while current is not None and compute_wake(current, policies.jitter, policies.key) <= now:
        decision = decide(recurrence, current, now, *busy, policies)
        if isinstance(decision, Execute):
            return skips, current
        assert decision.first == current
        assert decision.resume_at is None or decision.resume_at > decision.last >= decision.first
        skips.append(decision)
        assert len(skips) < 500
        current = decision.resume_at
    return skips, current


@pytest.mark.parametrize(
    ("recurrence", "grace", "now", "expected"),
    [
        (HOURLY, None, "10:00:00", RUN),
        (HOURLY, None, "10:01:00", RUN),  # up to 60 s
        (HOURLY, None, "09:59:59", RUN),  # the claim's clock may be behind
        (MINUTELY, None, "10:00:30", RUN),  # half the gap
        (MINUTELY, None, "10:00:30.000001", "late"),
        (HOURLY, timedelta(0), "10:00:00", RUN),
        (HOURLY, timedelta(0), "10:00:00.000001", "late"),
        (HOURLY, 5 * MINUTE, "10:05:00", RUN),
        (HOURLY, 5 * MINUTE, "10:05:01", "late"),
        (HOURLY, 5 * HOUR, "12:30:00", RUN),
        (Every(SECOND, at("00:00")), None, "10:00:00.500000", RUN),
        (Every(SECOND, at("00:00")), None, "10:00:00.500001", "late"),
        (Once(at("10:00")), None, "10:01:00", RUN),  # no next point: 60 s
        (Once(at("10:00")), None, "10:01:01", "late"),
    ],
)
def test_a_point_is_on_time_within_its_grace(
    recurrence: Recurrence, grace: timedelta | None, now: str, expected: str
) -> None:
    decision = decide(recurrence, at("10:00"), at(now), None, None, Policies(missed="skip", grace=grace))
    assert ("late" if isinstance(decision, Skip) else RUN) == expected


def test_grace_counts_from_the_wake_not_from_the_point() -> None:
    policies = Policies(missed="skip", jitter=10 * MINUTE, key="report")
    wake = compute_wake(at("10:00"), policies.jitter, policies.key)
    assert wake > at("10:00")
    assert decide(HOURLY, at("10:00"), wake + MINUTE, None, None, policies) == Execute()
    assert decide(HOURLY, at("10:00"), wake + MINUTE + SECOND, None, None, policies) != Execute()


#: overlap, now, decision about 10:01 when the schedule was busy from 10:00:00 to 10:05:20.
OVERLAPS = [
    ("skip", "10:05:20", ("10:01:00", "10:04:00", 4, "overlap", "10:05:00")),
    ("skip", "10:05:31", ("10:01:00", "10:05:00", 5, "overlap", "10:06:00")),
    ("skip", "10:30:00", ("10:01:00", "10:05:00", 5, "overlap", "10:06:00")),
    ("queue_one", "10:05:20", ("10:01:00", "10:04:00", 4, "overlap", "10:05:00")),
    ("queue_one", "10:30:00", ("10:01:00", "10:04:00", 4, "overlap", "10:05:00")),
    ("queue_all", "10:05:20", RUN),
    ("queue_all", "10:30:00", RUN),
    # Nothing counts as overlap: judged by `missed`, here `latest`.
    ("allow", "10:05:20", ("10:01:00", "10:04:00", 4, "missed", "10:05:00")),
]


@pytest.mark.parametrize(("overlap", "now", "expected"), OVERLAPS)
def test_late_because_the_schedule_was_busy(overlap: str, now: str, expected: object) -> None:
    policies = Policies(overlap=overlap)
    decision = decide(MINUTELY, at("10:01"), at(now), at("10:00"), at("10:05:20"), policies)
    assert outcome(decision) == expected


@pytest.mark.parametrize("overlap", ["skip", "queue_one", "queue_all", "allow"])
def test_on_time_runs_although_it_fell_into_the_busy_stretch(overlap: str) -> None:
    decision = decide(MINUTELY, at("10:05"), at("10:05:25"), at("10:00"), at("10:05:20"), Policies(overlap=overlap))
    assert decision == Execute()


def test_both_ends_belong_to_the_busy_stretch() -> None:
    for busy, reason in [
        ((at("10:01"), at("10:05")), "overlap"),
        ((at("09:00"), at("10:01")), "overlap"),
        ((at("10:01:00.001"), at("10:05")), "missed"),
        ((at("09:00"), at("10:00:59.999")), "missed"),
        ((None, at("10:05")), "missed"),
        ((at("09:00"), None), "missed"),
        ((at("10:05"), at("09:00")), "missed"),
    ]:
        decision = decide(MINUTELY, at("10:01"), at("10:30"), *busy, Policies())
        assert isinstance(decision, Skip)
        assert decision.reason == reason


#: missed, now, decision about 10:01 when nobody was there.
MISSED = [
    ("latest", "10:30:00", ("10:01:00", "10:29:00", 29, "missed", "10:30:00")),
    ("latest", "10:30:59", ("10:01:00", "10:29:00", 29, "missed", "10:30:00")),
    ("latest", "10:01:50", RUN),  # it is the latest itself
    ("all", "10:30:00", RUN),
    ("all", "12:00:59", ("10:01:00", "10:20:00", 20, "max_catch_up", "10:21:00")),
    ("skip", "10:30:10", ("10:01:00", "10:29:00", 29, "missed", "10:30:00")),  # 10:30 is not late yet
    ("skip", "10:30:40", ("10:01:00", "10:30:00", 30, "missed", "10:31:00")),
]


@pytest.mark.parametrize(("missed", "now", "expected"), MISSED)
def test_late_because_nobody_was_there(missed: str, now: str, expected: object) -> None:
    assert outcome(decide(MINUTELY, at("10:01"), at(now), None, None, Policies(missed=missed))) == expected


@pytest.mark.parametrize("keep", [1, 2, 5, 30, 31])
@pytest.mark.parametrize("recurrence", [MINUTELY, Every(MINUTE, at("00:00")), Windowed(MINUTELY, end=at("10:30"))])
def test_all_keeps_the_newest_few(recurrence: Recurrence, keep: int) -> None:
    decision = decide(recurrence, at("10:00"), at("10:30:50"), None, None, Policies(missed="all", max_catch_up=keep))
    if keep == 31:
        assert decision == Execute()
    else:
        assert isinstance(decision, Skip)
        assert (decision.points, decision.reason) == (31 - keep, "max_catch_up")
        assert decision.resume_at == at("10:30") - (keep - 1) * MINUTE
        assert decision.last == decision.resume_at - MINUTE


def test_all_with_nothing_to_keep_skips_what_is_late() -> None:
    decision = decide(MINUTELY, at("10:00"), at("10:30:10"), None, None, Policies(missed="all", max_catch_up=0))
    assert outcome(decision) == ("10:00:00", "10:29:00", 30, "max_catch_up", "10:30:00")


def test_what_comes_due_while_catching_up_does_not_push_out_what_was_missed() -> None:
    policies = Policies(missed="all", max_catch_up=3, overlap="queue_all")
    # Missed 10:00 to 10:02; catching up since 10:02:40 made more than three others due.
    decision = decide(MINUTELY, at("10:00"), at("10:10"), at("10:02:40"), at("10:09:50"), policies)
    assert decision == Execute()


@pytest.mark.parametrize(
    ("overlap", "missed", "expected"),
    [
        ("queue_all", "latest", ([("10:00:00", "10:09:00", 10, "missed", "10:10:00")], at("10:10"))),
        ("queue_all", "skip", ([("10:00:00", "10:09:00", 10, "missed", "10:10:00")], at("10:10"))),
        (
            "queue_one",
            "latest",
            (
                [
                    ("10:00:00", "10:09:00", 10, "missed", "10:10:00"),
                    ("10:10:00", "10:19:00", 10, "overlap", "10:20:00"),
                ],
                at("10:20"),
            ),
        ),
        (
            "skip",
            "latest",
            (
                [
                    ("10:00:00", "10:09:00", 10, "missed", "10:10:00"),
                    ("10:10:00", "10:20:00", 11, "overlap", "10:21:00"),
                    ("10:21:00", "10:29:00", 9, "missed", "10:30:00"),
                ],
                at("10:30"),
            ),
        ),
        ("allow", "latest", ([("10:00:00", "10:29:00", 30, "missed", "10:30:00")], at("10:30"))),
    ],
)
def test_what_was_missed_ends_where_a_busy_stretch_begins(overlap: str, missed: str, expected: object) -> None:
    busy = (at("10:10"), at("10:20"))
    skips, point = follow(MINUTELY, at("10:00"), at("10:30:50"), busy, Policies(overlap=overlap, missed=missed))
    assert ([outcome(skip) for skip in skips], point) == expected


@pytest.mark.parametrize("missed", ["latest", "all"])
@pytest.mark.parametrize("busy", [(None, None), (at("08:00"), at("10:30"))])
def test_points_beyond_the_catch_up_window_are_skipped_whatever_the_policy(
    missed: str, busy: tuple[datetime | None, datetime | None]
) -> None:
    policies = Policies(missed=missed, overlap="queue_all", catch_up_window=10 * MINUTE)
    decision = decide(MINUTELY, at("10:00"), at("10:30:00"), *busy, policies)
    assert outcome(decision) == ("10:00:00", "10:19:00", 20, "catch_up_window", "10:20:00")


def test_the_catch_up_window_counts_from_the_wake_and_not_against_grace() -> None:
    policies = Policies(catch_up_window=MINUTE, jitter=30 * MINUTE, key="report")
    wake = compute_wake(at("10:00"), policies.jitter, policies.key)
    assert wake > at("10:02")
    assert decide(HOURLY, at("10:00"), wake + 30 * SECOND, None, None, policies) == Execute()
    assert not is_too_old(at("10:00"), wake + MINUTE, policies)
    assert is_too_old(at("10:00"), wake + MINUTE + SECOND, policies)
    assert not is_too_old(at("10:00"), at("2030-01-01 00:00"), Policies())
    patient = Policies(catch_up_window=MINUTE, grace=HOUR)
    assert decide(HOURLY, at("10:00"), at("10:50"), None, None, patient) == Execute()


@pytest.mark.parametrize(("missed", "expected"), [("latest", RUN), ("all", RUN), ("skip", "ends")])
def test_a_late_single_point(missed: str, expected: str) -> None:
    decision = decide(Once(at("10:00")), at("10:00"), at("12:00"), None, None, Policies(missed=missed))
    if expected == RUN:
        assert decision == Execute()
    else:
        assert outcome(decision) == ("10:00:00", "10:00:00", 1, "missed", None)


def test_a_window_that_ended_leaves_nothing_to_resume() -> None:
    window = Windowed(MINUTELY, end=at("10:10"))
    decision = decide(window, at("10:00"), at("12:00"), None, None, Policies(missed="skip"))
    assert outcome(decision) == ("10:00:00", "10:10:00", 11, "missed", None)
    assert follow(window, at("10:00"), at("12:00"), (None, None), Policies())[1] == at("10:10")
    overlapped = decide(window, at("10:00"), at("12:00"), at("09:00"), at("11:00"), Policies())
    assert outcome(overlapped) == ("10:00:00", "10:10:00", 11, "overlap", None)


def test_a_point_that_an_edit_left_off_the_recurrence_counts_as_one() -> None:
    decision = decide(HOURLY, at("10:30"), at("14:20"), None, None, Policies())
    assert outcome(decision) == ("10:30:00", "13:00:00", 4, "missed", "14:00:00")
    assert decide(Once(at("18:00")), at("10:30"), at("14:20"), None, None, Policies()) == Execute()


def test_a_weeks_outage_of_a_minutely_schedule_is_decided_without_going_through_its_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, real = [], cron.find_stretch
    monkeypatch.setattr(cron, "find_stretch", lambda zone, second: looks.append(second) or real(zone, second))
    now, point = at("10:00:10"), at("10:00") - timedelta(days=7)
    for policies, busy in [
        (Policies(), (None, None)),
        (Policies(missed="all"), (None, None)),
        (Policies(missed="skip"), (None, None)),
        (Policies(missed="skip", jitter=HOUR, key="x"), (None, None)),
        (Policies(overlap="skip"), (point, now)),
        (Policies(overlap="queue_one", jitter=HOUR, key="x"), (point, now)),
        (Policies(catch_up_window=HOUR), (None, None)),
    ]:
        looks.clear()
        skips, _ = follow(MINUTELY, point, now, busy, policies)
        assert sum(skip.points for skip in skips) > 9_000
        assert 0 < len(looks) < 200, policies


RULES = st.sampled_from(
    [
        MINUTELY,
        HOURLY,
        Cron("*/7 9-17 * * 1-5", "America/New_York"),
        Cron("30 2 * * *", "America/New_York"),
        Cron("*/20 * * * * *"),
        Every(timedelta(seconds=37, microseconds=250), at("00:00")),
        Once(at("09:00")),
        Windowed(MINUTELY, end=at("10:10")),
    ]
)
LATENCIES = st.one_of(st.timedeltas(timedelta(0), 3 * MINUTE), st.timedeltas(timedelta(0), timedelta(days=3)))
POLICIES = st.builds(
    Policies,
    overlap=st.sampled_from(["skip", "queue_one", "queue_all", "allow"]),
    missed=st.sampled_from(["latest", "all", "skip"]),
    grace=st.sampled_from([None, timedelta(0), 10 * SECOND, HOUR]),
    catch_up_window=st.sampled_from([None, None, timedelta(0), MINUTE, HOUR]),
    max_catch_up=st.sampled_from([0, 1, 3, 100]),
    jitter=st.sampled_from([timedelta(0), timedelta(0), 5 * SECOND, 3 * MINUTE]),
    key=st.sampled_from(["", "report"]),
)


@settings(deadline=None, database=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(rule=RULES, latency=LATENCIES, start=LATENCIES, length=LATENCIES, policies=POLICIES, busy=st.booleans())
def test_deciding_ends_and_every_point_is_accounted_for_once(
    rule: Recurrence, latency: timedelta, start: timedelta, length: timedelta, policies: Policies, busy: bool
) -> None:
    point = rule.next_after(at("2026-11-20 08:59"))
    assert point is not None
    now = point + latency
    stretch = (point - HOUR + start, min(point - HOUR + start + length, now)) if busy else (None, None)
    skips, end = follow(rule, point, now, stretch, policies)
    position: datetime | None = point
    for skip in skips:
        assert skip.first == position
        assert skip.points == rule.count_between(skip.first, skip.last)
        assert skip.points >= 1
        assert rule.next_after(skip.last) == skip.resume_at
        assert skip.last <= now
        position = skip.resume_at
    assert position == end
    if skips and policies.missed == "skip" and policies.overlap == "allow" and end is not None:
        assert decide(rule, end, now, *stretch, policies) == Execute()


@pytest.mark.parametrize(
    ("missed", "now", "last", "runs"),
    [
        ("latest", "13:30", "12:00", "13:00"),
        ("skip", "13:30", "13:00", None),
        ("skip", "13:01", "12:00", "13:00"),
        ("all", "13:30", None, "10:00"),
    ],
)
def test_what_follows_a_skip_and_has_woken_is_decided_with_it(
    missed: str, now: str, last: str | None, runs: str | None
) -> None:
    skips, point = decide_all(HOURLY, at("10:00"), at(now), None, None, Policies(missed=missed))
    assert [skip.last for skip in skips] == ([] if last is None else [at(last)])
    assert point == (None if runs is None else at(runs))


@pytest.mark.parametrize(("name", "value"), [("overlap", "sometimes"), ("missed", ""), ("overlap", None)])
def test_an_unknown_policy_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRecurrence, match=name) as caught:
        Policies(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


def test_a_naive_instant_is_refused() -> None:
    naive = datetime(2026, 11, 21, 10)  # noqa: DTZ001
    late = at("12:00")
    for arguments in [
        (naive, late, None, None),
        (at("10:00"), naive, None, None),
        (at("10:00"), late, naive, late),
        (at("10:00"), late, at("09:00"), naive),
    ]:
        with pytest.raises(ValueError, match="aware"):
            decide(HOURLY, *arguments, Policies())
