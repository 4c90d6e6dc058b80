"""What a recorder does with what the database refuses: `worker/recorder.py`, Note [Whose fault]."""

from types import SimpleNamespace

import pytest
from django.db import DataError, IntegrityError, InterfaceError, InternalError, OperationalError, ProgrammingError

from django_delayq.broker import Shard
from django_delayq.kinds import Held, Verdicts
from django_delayq.worker.recorder import Recorder

KEPT = [InternalError, InterfaceError, OperationalError, ProgrammingError]
LET_GO = [DataError, IntegrityError, ValueError]
PLACE = Shard("default", 0)


class Table:
    """A kind whose table takes members, but for those that it refuses. It takes all of a batch, or nothing."""

    tables = ()

    def __init__(self, refused):
        self.refused, self.rows = refused, []

    def record(self, batch):
        """Write members, and let go of what is written."""
        for held in batch:
            if int(held.member) in self.refused:
                raise self.refused[int(held.member)]
        self.rows += [int(held.member) for held in batch]
        return Verdicts(gone=list(batch))


class Keeper:
    """Notes who is let go."""

    def __init__(self, size):
        self.batch_size, self.let_go = size, []

    def discard(self, held):
        """Note it."""
        self.let_go += [int(item.member) for item in held]


def play(count, size, refused):
    """Write so many members in batches; return the table, who is let go, what is left, and the error."""
    table, keeper, errors = Table(refused), Keeper(size), []
    trouble = SimpleNamespace(
        until=0.0, database_failed=lambda error, writing: errors.append(type(error)), database_worked=lambda wrote: None
    )
    recorder = Recorder([table], keeper, trouble, None)
    for number in range(count):
        recorder.add([Held(table, PLACE, str(number), "", float("inf"))])
    recorder.flush()
    left = [int(held.member) for held in recorder.waiting[table].unrecorded]
    return table.rows, [number for number in keeper.let_go if number not in table.rows], left, errors


@pytest.mark.parametrize("error", KEPT)
def test_where_any_row_would_be_refused_nothing_is_let_go(error):
    assert play(5, 2, {3: error}) == ([0, 1], [], [2, 3, 4], [error])


@pytest.mark.parametrize("error", LET_GO)
def test_a_row_that_is_itself_at_fault_is_let_go_and_holds_up_no_other(error, caplog):
    assert play(9, 4, {5: error}) == ([0, 1, 2, 3, 4, 6, 7, 8], [5], [], [])
    assert caplog.text.count("cannot be recorded") == 1


def test_what_was_written_one_by_one_before_an_outage_is_not_written_again():
    assert play(6, 6, {1: DataError, 4: InternalError}) == ([0, 2, 3], [1], [4, 5], [InternalError])
