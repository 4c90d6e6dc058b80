"""One row, one outcome: the compare-and-set by which rows are written over.

Note [Compare and set]
Redis is settled after the ledger, by whoever won the ledger's compare-and-set. A new row is won by a unique constraint;
an existing one by being locked and found with the version (status, attempt, fence, when it was made) that was read,
compared for equality only: fences are not ordered, as a clock may step back and Redis may be flushed. A row that
already has the version that I write is mine: the reply to an earlier COMMIT was lost. So is one that I have written in
this call: after a flush one worker may have executed an entry twice.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Model

from ..rows import Won
from .bulk import reader, writer
from .locks import locked_by_others


class Change(NamedTuple):
    """A row with the version that was read of it, the one that it gets, and all values that it gets.

    None in place of the values: it is deleted.
    """

    pk: int
    seen: tuple[Any, ...] | None
    after: tuple[Any, ...]
    values: tuple[Any, ...] | None


class Changed(NamedTuple):
    """What became of a change: GONE where there is no such row any more.

    `stands` is the version that was found, None where none was; `again` says that the row was mine already.
    """

    won: Won
    stands: tuple[Any, ...] | None
    again: bool = False


def change(
    model: type[Model], version: Sequence[str], names: Sequence[str], changes: Sequence[Change], using: str
) -> list[Changed]:
    """Write rows over, as far as they are as they were read, in two statements. See Note [Compare and set].

    `version` names the columns that are compared, `names` those that are written. Within a transaction (`writing`).
    """
    pks = {item.pk for item in changes}
    found = {pk: tuple(row) for pk, *row in reader(model, "id", ("pk", *version), using, lock=True).read(pks)}
    taken = locked_by_others(model, pks - found.keys(), using) if len(found) < len(pks) else ()
    changed, won, gone = [], [], []
    for item in changes:
        stands = found.get(item.pk)
        if stands is None:
            changed.append(Changed(Won.LOCKED if item.pk in taken else Won.GONE, None))
        elif stands == item.seen:
            if item.values is None:
                gone.append(item.pk)
            else:
                won.append((item.pk, *item.values))
            found[item.pk] = item.after
            changed.append(Changed(Won.YES, stands))
        else:
            again = stands == item.after
            changed.append(Changed(Won.YES if again else Won.LOST, stands, again))
    writer(model, ("id", *names), using).update(won)
    if gone:
        model._base_manager.using(using).filter(pk__in=gone)._raw_delete(using)
    return changed
