"""Which titles of errors are of one group, and which are not."""

import pytest

from django_delayq.monitoring.failures import MOST_KEPT, compute_digest, compute_fingerprint

SAME = {
    "KeyError: '…'": ["KeyError: 'abc'", 'KeyError: "d e f"', "KeyError: b'\\x00'", r"KeyError: 'it\'s'"],
    "Http404: no # of #": ["Http404: no 7 of 8", "Http404: no -12.5 of 1e-05"],
    "E: user # at #": ["E: user 12 at 2024-01-02T10:11:12.123Z", "E: user 4711 at 2025-12-31T00:00:00Z"],
    "E: # gone": ["E: 550e8400-e29b-41d4-a716-446655440000 gone", "E: a94a8fe5ccb19ba61c4c0873d391e987 gone"],
    "E: <Foo object at #>": ["E: <Foo object at 0x7f3a22>", "E: <Foo object at 0xDEADBEEF>"],
    "E: job default.#": ["E: job default.AbCdEf0123456789xyzQWE", "E: job default.zzz9aaa8bbb7ccc6ddd5e"],
    "E: ids [#] of ['…']": ["E: ids [1, 2, 3] of ['a', 'b']", "E: ids [4] of ['a']"],
    "E: two lines": ["E: two\nlines", "E:  two \t lines "],
    "IntegrityError: duplicate key (id)=(#)": ["IntegrityError: duplicate key (id)=(55)"],
}


@pytest.mark.parametrize("wanted", SAME)
def test_what_differs_from_one_time_to_the_next_is_left_out(wanted: str) -> None:
    assert {compute_fingerprint(title) for title in SAME[wanted]} == {wanted}
    assert compute_fingerprint(wanted) == wanted, "nothing is left to be left out"


@pytest.mark.parametrize(
    "title",
    [
        "", "timeout", "poison", "catch_up_window", "ValueError", "DoesNotExist: Order matching query does not exist.",
        "E: it's the users' table, isn't it", "E: added decade facade deadbeef", "Http404: gone", "ÜberFehler: ä",
    ],
)  # fmt: skip
def test_words_stay_as_they_are(title: str) -> None:
    assert compute_fingerprint(title) == title


def test_classes_that_differ_by_a_number_are_different() -> None:
    assert len({compute_fingerprint(title) for title in ("Http404: x", "Http403: x", "S3Error", "S4Error")}) == 4
    assert len({compute_fingerprint(title) for title in ("E: no disk", "E: no luck", "F: no luck", "no luck")}) == 4


def test_where_a_title_was_cut_makes_no_difference() -> None:
    quoted = [f"KeyError: '{'a' * number}'"[:200] for number in (5, 188, 189, 300)]
    assert {compute_fingerprint(title) for title in quoted} == {"KeyError: '…'"}
    numbered = [f"E: {'row ' + '7' * digits} of {'the table ' * 40}"[:200] for digits in (1, 20, 60)]
    (text,) = {compute_fingerprint(title) for title in numbered}
    assert len(text) == MOST_KEPT
    assert compute_fingerprint("E: an 'open end") == "E: an 'open end", "of a short title nothing was cut"
    assert compute_fingerprint(f"E: {'x ' * 100_000}") == compute_fingerprint(f"E: {'x ' * 98}"), (
        "and of a long one no more is read"
    )


def test_a_digest_is_of_all_three() -> None:
    found = {compute_digest(*names) for names in (("a", "b", "c"), ("a", "bc", ""), ("ab", "", "c"), ("x", "b", "c"))}
    assert len(found) == 4 and all(len(digest) == 32 for digest in found)
    assert compute_digest("a", "b", "c") == compute_digest("a", "b", "c")
    compute_digest("a", "\ud800", "half of a surrogate pair")
