"""Attempts as they are kept: how many, with how much text, and what comes back from JSON."""

import json

import pytest

from django_delayq.calls.attempt import (
    MOST_ATTEMPTS,
    MOST_LINE,
    MOST_TRACE,
    MOST_TRACES,
    NOT_ENDED,
    Attempt,
    add_attempt,
    from_json,
    to_json,
)


def kept_of(count: int, trace: str = "trace") -> list[Attempt]:
    kept: list[Attempt] = []
    for number in range(1, count + 1):
        kept = add_attempt(kept, number, number + 1, "w-1", f"Error: {number}", f"{trace} {number}")
    return kept


@pytest.mark.parametrize("count", [0, 1, MOST_TRACES, MOST_ATTEMPTS])
def test_attempts_are_kept_in_their_order(count: int) -> None:
    assert [(each.number, each.title) for each in kept_of(count)] == [(n, f"Error: {n}") for n in range(1, count + 1)]


def test_of_too_many_attempts_the_first_and_the_newest_are_left_and_their_numbers_go_on() -> None:
    numbers = [each.number for each in kept_of(1000)]
    assert numbers == [1, *range(1000 - MOST_ATTEMPTS + 2, 1001)]
    assert len(numbers) == MOST_ATTEMPTS


@pytest.mark.parametrize("count", [MOST_TRACES, MOST_TRACES + 1, 50, 1000])
def test_the_first_and_the_newest_keep_their_tracebacks(count: int) -> None:
    traced = [each.number for each in kept_of(count) if each.trace]
    assert traced == [1, *range(count - MOST_TRACES + 2, count + 1)]


def test_no_history_is_longer_than_its_bounds_however_long_its_texts_are() -> None:
    kept: list[Attempt] = []
    for _ in range(300):
        kept = add_attempt(kept, 10**12, 10**12, "w" * 10**4, "t" * 10**4, "x" * 10**5)
    size = len(json.dumps(to_json(kept)))
    assert size < MOST_TRACES * MOST_TRACE + MOST_ATTEMPTS * (2 * MOST_LINE + 200)


def test_of_a_long_traceback_the_end_is_kept_and_a_title_is_one_line() -> None:
    (kept,) = add_attempt([], 1, 2, "w", "ValueError: a\n\nb", "x" * MOST_TRACE + "the end")
    assert (kept.title, len(kept.trace), kept.trace[-7:]) == ("ValueError: a b", MOST_TRACE, "the end")


def test_an_attempt_comes_back_from_json_as_it_was() -> None:
    kept = add_attempt(kept_of(2), 7, None, "w-2", NOT_ENDED)
    assert from_json(json.loads(json.dumps(to_json(kept)))) == kept
    assert [each.ended for each in kept] == [True, True, False]


def test_what_a_later_version_says_more_is_left_out() -> None:
    later = {"number": 3, "started": 1, "finished": 2, "worker": "w", "title": "5", "trace": "", "more": {}}
    assert from_json([later]) == [Attempt(3, 1, 2, "w", "5", "")]
    assert from_json(None) == []
