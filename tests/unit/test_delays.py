"""The growing delays of what is handed back again and again."""

from django_delayq.worker import trouble
from django_delayq.worker.trouble import Delays


def test_they_double_up_to_the_longest():
    made = Delays(100, 1000)
    assert [made.get_next("a", 0.0) for _ in range(6)] == [100, 200, 400, 800, 1000, 1000]
    assert made.get_next("b", 0.0) == 100


def test_what_is_over_begins_anew():
    made = Delays(100, 1000)
    made.get_next("a", 0.0)
    made.forget("a")
    made.forget("b")
    assert made.get_next("a", 0.0) == 100


def test_who_was_away_for_long_begins_anew():
    made = Delays(100, 1000)
    assert [made.get_next("a", at) for at in (0.0, 2.9, 5.8)] == [100, 200, 400]
    assert made.get_next("b", 8.9) == 100
    assert made.get_next("a", 8.9) == 100


def test_so_many_are_remembered_and_others_wait_the_longest(monkeypatch):
    """They must not take each other's place: then nobody's delay would grow."""
    monkeypatch.setattr(trouble, "REMEMBERED", 2)
    made = Delays(100, 1000)
    for at in range(5):
        found = [made.get_next(name, float(at)) for name in "abcd"]
        assert found == [min(100 * 2**at, 1000)] * 2 + [1000] * 2
    assert made.get_next("c", 8.0) == 100, "the others were away for long"
