"""The sums of what became of due points and jobs, as values."""

from itertools import pairwise

import pytest

from django_delayq.index import counters
from django_delayq.index.counters import (
    BOUNDS_MS,
    LATENCY,
    RAN,
    Counts,
    compute_percentile,
    decode,
    format_field,
    select_outcomes,
)

KEY = ("points", "default", "app.tasks.one")


def test_an_outcome_a_wait_and_a_duration_are_counted_beside_each_other() -> None:
    counts = Counts()
    counts.add(KEY, "succeeded", latency=0.0015, ran=0.25)
    counts.add(KEY, "succeeded", latency=0.002, ran=99_999.0)
    counts.add(KEY, "skipped:missed", 7)
    buckets = {"latency:2": 2, "latency:us": 3_500, "ran:250": 1, "ran:more": 1, "ran:us": 99_999_250_000}
    assert counts == {KEY: {"succeeded": 2, "skipped:missed": 7, **buckets}}
    assert select_outcomes(counts[KEY]) == {"succeeded": 2, "skipped:missed": 7}


def test_what_others_have_counted_is_added() -> None:
    one, other = Counts(), Counts()
    one.add(KEY, "succeeded", latency=1)
    other.add(KEY, "succeeded", latency=1, ran=1)
    other.add(("jobs", "mail", "x"), "lost")
    one.merge(other.items())
    sums = {"latency:us": 2_000_000, "ran:us": 1_000_000}
    assert one == {KEY: {"succeeded": 2, "latency:1000": 2, "ran:1000": 1, **sums}, ("jobs", "mail", "x"): {"lost": 1}}
    assert other[KEY]["succeeded"] == 1, "the other one stays as it was"


def test_further_tasks_are_counted_as_one_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "MOST_TASKS", 2)
    counts = Counts()
    for number in range(5):
        counts.add(("jobs", "default", f"t{number}"), "failed")
    counts.merge([(("jobs", "default", "t9"), {"failed": 3}), (("jobs", "default", "t0"), {"failed": 1})])
    assert counts == {
        ("jobs", "default", "t0"): {"failed": 2},
        ("jobs", "default", "t1"): {"failed": 1},
        ("jobs", "default", ""): {"failed": 6},
    }


@pytest.mark.parametrize(
    ("waits", "share", "expected"),
    [
        ([], 0.5, None),
        ([0.0], 0.5, 0.001),
        ([0.001] * 99 + [3.0], 0.5, 0.001),
        ([0.001] * 99 + [3.0], 0.99, 0.001),
        ([0.001] * 98 + [3.0] * 2, 0.99, 4.0),
        ([0.1, 0.2, 0.4, 20.0], 0.5, 0.25),
        ([9_999.0], 0.99, 3600.0),
    ],
)
def test_a_percentile_is_the_bound_of_its_bucket(waits: list[float], share: float, expected: float | None) -> None:
    counts = Counts({KEY: {}})
    for wait in waits:
        counts.add(KEY, "succeeded", latency=wait)
    assert compute_percentile(counts[KEY], LATENCY, share) == expected
    assert compute_percentile(counts[KEY], RAN, share) is None


def test_the_bounds_go_from_a_millisecond_to_an_hour_and_about_double() -> None:
    assert (BOUNDS_MS[0], BOUNDS_MS[-1]) == (1, 3_600_000)
    steps = [after / before for before, after in pairwise(BOUNDS_MS)]
    assert min(steps) > 1.8 and max(steps) < 2.2


def test_what_redis_holds_is_read_back_and_garbage_is_left_out() -> None:
    tally = {"succeeded": 2, "latency:1000": 1}
    fields = {format_field(KEY[0], name, KEY[2]): str(number) for name, number in tally.items()}
    names = ("", "points", "points x", "other x a", "points x \0", "points \udc80 a", f"points {'x' * 65} a")
    garbage = dict.fromkeys((*names, f"points x {'x' * 256}"), "1")
    garbage |= {f"points x {n}": value for n, value in enumerate(("", "{", "-1", "0", "1.5", str(2**53), "9" * 5000))}
    assert decode("default", {**fields, **garbage, "jobs lost ": "1000"}) == {
        KEY: tally, ("jobs", "default", ""): {"lost": 1000}
    }  # fmt: skip
