"""What the oracle expects, where a test of a fault could not tell that it expects too much."""

from datetime import UTC, datetime, timedelta

from django_delayq.recurrence import Every, to_ms
from tests.faults.harness.oracle import History, Version, due_points, overtaken_points

START, SECOND = datetime(2026, 5, 1, tzinfo=UTC), timedelta(seconds=1)


def test_what_comes_due_between_an_edits_beginning_and_its_commit_may_run_and_need_not():
    """A worker reads what is committed; when an edit begins is decided before."""
    each_second = Every(SECOND, START)
    edited = Version(START + 2.5 * SECOND, None, committed=START + 4.2 * SECOND)
    history = History(1, "s", [Version(START, each_second, committed=START), edited])
    assert due_points(history, START + 9 * SECOND) == [to_ms(START + n * SECOND) for n in (1, 2)]
    assert overtaken_points(history) == {to_ms(START + n * SECOND) for n in (3, 4)}
