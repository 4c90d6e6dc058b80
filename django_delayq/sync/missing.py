"""Puts committed rows into Redis that were not put there: their process died, or Redis was unavailable.

Note [A mark limits the search]
A row does not record whether Redis has it: that would be a second write per job. Instead, the worker with the upkeep
lease reads the rows above a mark, by primary key, and puts those that still wait. The mark is stored in Redis, so a
flush deletes it too: then all open rows are put.

Note [Gaps are queried again]
Keys do not follow the order of commits: a row may be committed minutes after greater keys were read. So keys that are
missing below the mark are stored, and queried again for GAP_SECONDS; after that, the next full sweep finds the rows.
SQLite has one writer at a time, so its keys follow its commits.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.models import Max, Q, QuerySet

from .. import ledger
from ..index import Broker
from ..models import Run, Status
from .layout import check_layout
from .runs import put_runs

logger = logging.getLogger("django_delayq.sync")

#: Maximum rows per query, and maximum queries per call: 100,000 rows.
PAGE, MOST_PAGES = 5_000, 20
#: Rows put at a time.
PUT = 1_000
#: Seconds for which gaps are kept: the interval of full sweeps.
GAP_SECONDS = 600
#: Maximum ranges that are stored, and maximum per query.
MOST_GAPS, RANGES = 1_000, 200
#: The last key up to which this process has put all rows, so that an idle worker does not read the mark.
_done: "WeakKeyDictionary[Broker, int | None]" = WeakKeyDictionary()


class Gap(NamedTuple):
    """Keys from `first` to `last` that were missing. `since`: seconds since 1970."""

    first: int
    last: int
    since: int


@dataclass(slots=True)
class Mark:
    seen: int
    gaps: list[Gap] = field(default_factory=list)

    @classmethod
    def read(cls, broker: Broker) -> "Mark | None":
        try:
            seen, gaps = json.loads(broker.read_note("missed") or "")
            return cls(int(seen), [Gap(int(first), int(last), int(since)) for first, last, since in gaps])
        except (ValueError, TypeError, LookupError):
            return None

    def write(self, broker: Broker) -> None:
        broker.write_note("missed", json.dumps((self.seen, self.gaps[-MOST_GAPS:])))


def put_missing(broker: Broker) -> int:
    """Put rows that Redis does not have; return how many. After an error, the next call starts from the same mark."""
    last, count = read_last_key(), 0
    if _done.get(broker) == last:
        return 0
    check_layout(broker)
    mark = Mark.read(broker)
    before = None if mark is None else (mark.seen, list(mark.gaps))
    if mark is None:
        count, mark = sum(put_runs(broker, page) for page in ledger.read_open_pages(PUT)), _mark_behind(last)
    elif mark.seen > last:  # the last rows were deleted, or the database is a backup
        mark = Mark(last, [gap for gap in mark.gaps if gap.last < last])
    count += _put_from_gaps(broker, mark) + _put_above(broker, mark)
    if (mark.seen, mark.gaps) != before:
        mark.write(broker)
    _done[broker] = None if mark.gaps else mark.seen
    if count:
        logger.info("Put %d runs and jobs into Redis that were not there.", count)
    return count


def note_all_put(broker: Broker, last: int) -> None:
    """Record that all open rows up to this key were put, as by a rebuild. An existing mark is kept."""
    if Mark.read(broker) is None:
        _mark_behind(last).write(broker)


def _mark_behind(last: int) -> Mark:
    """Return the mark after all open rows up to this key were put: earlier, so that gaps among the newest are found."""
    return Mark(max(0, last - PAGE * MOST_PAGES) if _has_gaps() else last)


def _has_gaps() -> bool:
    return connections[ledger.get_database()].vendor != "sqlite"


def read_last_key() -> int:
    return Run._base_manager.using(ledger.get_database()).aggregate(last=Max("pk"))["last"] or 0


def _query_rows() -> "QuerySet[Run, tuple[int, str, bool]]":
    return Run._base_manager.using(ledger.get_database()).order_by("pk").values_list("pk", "status", "separate")


def _put_above(broker: Broker, mark: Mark) -> int:
    count, notes_gaps = 0, _has_gaps()
    for _ in range(MOST_PAGES):
        page = list(_query_rows().filter(pk__gt=mark.seen)[:PAGE])
        count += _put(broker, page)
        for pk, _, _ in page:
            if notes_gaps and pk > mark.seen + 1:
                mark.gaps.append(Gap(mark.seen + 1, pk - 1, int(time.time())))
            mark.seen = pk
        if len(page) < PAGE:
            break
    return count


def _put(broker: Broker, rows: Sequence[tuple[Any, ...]]) -> int:
    pks = [pk for pk, status, separate in rows if separate and status == Status.QUEUED]
    return sum(put_runs(broker, ledger.load_waiting(pks[at : at + PUT])) for at in range(0, len(pks), PUT))


def _put_from_gaps(broker: Broker, mark: Mark) -> int:
    """Put rows that have appeared in gaps; drop gaps that are filled or old. See Note [Gaps are queried again]."""
    count, left, now = 0, list[Gap](), int(time.time())
    for at in range(0, len(mark.gaps), RANGES):
        gaps, wanted = mark.gaps[at : at + RANGES], Q()
        for gap in gaps:
            wanted |= Q(pk__range=(gap.first, gap.last))
        found = list(_query_rows().filter(wanted))
        count += _put(broker, found)
        for gap in gaps:
            if now - gap.since < GAP_SECONDS:
                left += _split(gap, [pk for pk, _, _ in found if gap.first <= pk <= gap.last])
    mark.gaps = left
    return count


def _split(gap: Gap, pks: Sequence[int]) -> list[Gap]:
    pairs = pairwise([gap.first - 1, *pks, gap.last + 1])
    return [Gap(before + 1, after - 1, gap.since) for before, after in pairs if after - before > 1]
