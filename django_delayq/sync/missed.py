"""Puts committed rows into Redis that were not put there: their process died, or Redis was unavailable.

Note [Above a mark]
A row does not record whether Redis has it, which would take a second write per job. Instead, the worker with the
upkeep lease reads the rows above a mark, by primary key, and puts those that still wait. The mark is stored in Redis,
so a flush deletes it too: then all open rows are put. Rows that a restored database has reopened are put by the next
full sweep.

Note [Gaps]
Keys do not follow the order of commits: a row may be committed an hour after greater keys were read. So keys that are
missing below the mark are stored as ranges, and queried again, until no transaction of that time is open any more (on
PostgreSQL), or for GAP_SECONDS. Beyond MOST_GAPS, the next full sweep finds the rows. SQLite has one writer at a
time, so its keys follow its commits.
"""

import json
import logging
import time
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from django.db import connections
from django.db.models import Max, Q

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
#: How long gaps are kept if the database does not report open transactions, in seconds.
GAP_SECONDS = 2 * 3600
#: Maximum ranges that are stored, and maximum per query.
MOST_GAPS, RANGES = 10_000, 200
#: The last key that was read, if no gap is left: Redis is not queried until there is a newer row.
_done: "WeakKeyDictionary[Broker, int]" = WeakKeyDictionary()


@dataclass(slots=True)
class Gap:
    """Keys from `first` to `last` that were missing. `since`: seconds since 1970; `before`: see `_snapshot`."""

    first: int
    last: int
    since: int
    before: int | None = None


@dataclass(slots=True)
class Mark:
    """The last key that was read, and the gaps below it."""

    seen: int
    gaps: list[Gap] = field(default_factory=list)

    @classmethod
    def read(cls, text: str | None) -> "Mark | None":
        """Return the stored mark; None if it is missing or invalid."""
        try:
            seen, gaps = json.loads(text or "")
            return cls(int(seen), [Gap(int(a), int(b), int(since), before) for a, b, since, before in gaps])
        except (ValueError, TypeError, LookupError):
            return None

    def as_text(self) -> str:
        """Return the mark as Redis stores it."""
        gaps = [(gap.first, gap.last, gap.since, gap.before) for gap in self.gaps[-MOST_GAPS:]]
        return json.dumps((self.seen, gaps), separators=(",", ":"))


def put_missed(broker: Broker) -> int:
    """Put rows that Redis does not have; return how many.

    Raises:
        BrokerError, DatabaseError: Some rows may have been put; the next call starts from the same mark.
    """
    last, count = last_key(), 0
    if _done.get(broker) == last:
        return 0
    check_layout(broker)
    mark = Mark.read(broker.missed_mark())
    before = "" if mark is None else mark.as_text()
    oldest, following = _snapshot()
    if mark is None:
        count, mark = sum(put_runs(broker, page) for page in ledger.open_pages(PUT)), _mark_behind(last)
    elif mark.seen > last:  # the last rows were deleted, or the database is a backup
        mark = Mark(last, [gap for gap in mark.gaps if gap.last < last])
    count += _look_into_gaps(broker, mark, oldest, following) + _look_on(broker, mark)
    if mark.as_text() != before:
        broker.note_missed_mark(mark.as_text())
    if mark.gaps:
        _done.pop(broker, None)
    else:
        _done[broker] = mark.seen
    if count:
        logger.info("Put %d runs and jobs into Redis that were not there.", count)
    return count


def note_all_put(broker: Broker, last: int) -> None:
    """Record that all open rows up to this key were put, as by a rebuild. An existing mark is kept."""
    _done.pop(broker, None)
    if Mark.read(broker.missed_mark()) is None:
        broker.note_missed_mark(_mark_behind(last).as_text())


def _mark_behind(last: int) -> Mark:
    """Return the mark once all open rows up to this key were put: the newest keys are searched for gaps."""
    return Mark(max(0, last - PAGE * MOST_PAGES) if _has_gaps() else last)


def _has_gaps() -> bool:
    return connections[ledger.database()].vendor != "sqlite"


def last_key() -> int:
    """Return the greatest primary key of a run; 0 if there is none."""
    return Run._base_manager.using(ledger.database()).aggregate(last=Max("pk"))["last"] or 0


def _look_on(broker: Broker, mark: Mark) -> int:
    """Put the rows above the mark, and move the mark."""
    rows, count = Run._base_manager.using(ledger.database()).order_by("pk"), 0
    notes_gaps = _has_gaps()
    for _ in range(MOST_PAGES):
        page = list(rows.filter(pk__gt=mark.seen).values_list("pk", "status", "apart")[:PAGE])
        count += _put(broker, page)
        for pk, _, _ in page:
            if notes_gaps and pk > mark.seen + 1:
                mark.gaps.append(Gap(mark.seen + 1, pk - 1, int(time.time())))
            mark.seen = pk
        if len(page) < PAGE:
            break
    return count


def _put(broker: Broker, rows: "list[tuple[Any, ...]]") -> int:
    pks = [pk for pk, status, apart in rows if apart and status == Status.QUEUED]
    return sum(put_runs(broker, ledger.load_waiting(pks[at : at + PUT])) for at in range(0, len(pks), PUT))


def _look_into_gaps(broker: Broker, mark: Mark, oldest: int | None, following: int | None) -> int:
    """Put rows that have appeared in gaps; drop gaps that cannot be filled any more. See Note [Gaps]."""
    count, left, now = 0, list[Gap](), int(time.time())
    rows = Run._base_manager.using(ledger.database()).order_by("pk").values_list("pk", "status", "apart")
    for at in range(0, len(mark.gaps), RANGES):
        gaps, wanted = mark.gaps[at : at + RANGES], Q()
        for gap in gaps:
            wanted |= Q(pk=gap.first) if gap.first == gap.last else Q(pk__range=(gap.first, gap.last))
        found = list(rows.filter(wanted))
        count += _put(broker, found)
        there = [pk for pk, _, _ in found]
        for gap in gaps:
            over = oldest is not None and gap.before is not None and oldest >= gap.before
            if not over and now - gap.since < GAP_SECONDS:
                gap.before = gap.before or (following if now > gap.since + 1 else None)
                left += _without(gap, [pk for pk in there if gap.first <= pk <= gap.last])
    mark.gaps = left
    return count


def _without(gap: Gap, pks: list[int]) -> list[Gap]:
    parts, first = [], gap.first
    for pk in [*pks, gap.last + 1]:
        if pk > first:
            parts.append(Gap(first, pk - 1, gap.since, gap.before))
        first = pk + 1
    return parts


def _snapshot() -> tuple[int | None, int | None]:
    """Return the oldest open transaction and the next transaction number; None if the database does not report them.

    A transaction draws a key before it gets its number, and has both within a second. So one second after a gap was
    found, a transaction that can still fill it has a number below `following`. The gap is final once the oldest open
    transaction has a greater number.
    """
    connection = connections[ledger.database()]
    if connection.vendor != "postgresql":
        return None, None
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s"
        )
        oldest, following = cursor.fetchone()
    return oldest, following
