"""What a recorder does with what the database refuses: `worker/recorder.py`, Note [Whose fault]."""

from types import SimpleNamespace

import pytest
from django.db import DataError, IntegrityError, InterfaceError, InternalError, OperationalError, ProgrammingError

from django_delayq.worker.recorder import write_all

KEPT = [InternalError, InterfaceError, OperationalError, ProgrammingError]
LET_GO = [DataError, IntegrityError, ValueError]


class Table:
    """Takes numbers, but for those that it refuses with these errors. It takes all of a batch, or nothing."""

    def __init__(self, refused):
        self.refused, self.rows, self.let_go = refused, [], []
        self.discard = self.let_go.extend

    def write(self, batch):
        """Write numbers."""
        for item in batch:
            if item.title in self.refused:
                raise self.refused[item.title]
        self.rows += [item.title for item in batch]


def play(count, size, refused):
    """Write so many numbers in batches; return the table, what is left, and the error."""
    table, error = Table(refused), None
    items = [SimpleNamespace(title=number, held=number) for number in range(count)]
    try:
        write_all(items, size, table.write, table)
    except Exception as raised:
        error = type(raised)
    return table.rows, table.let_go, [item.title for item in items], error


@pytest.mark.parametrize("error", KEPT)
def test_where_any_row_would_be_refused_nothing_is_let_go(error):
    assert play(5, 2, {3: error}) == ([0, 1], [], [2, 3, 4], error)


@pytest.mark.parametrize("error", LET_GO)
def test_a_row_that_is_itself_at_fault_is_let_go_and_holds_up_no_other(error, caplog):
    assert play(9, 4, {5: error}) == ([0, 1, 2, 3, 4, 6, 7, 8], [5], [], None)
    assert caplog.text.count("cannot be recorded") == 1


def test_what_was_written_one_by_one_before_an_outage_is_not_written_again():
    assert play(6, 6, {1: DataError, 4: InternalError}) == ([0, 2, 3], [1], [4, 5], InternalError)
