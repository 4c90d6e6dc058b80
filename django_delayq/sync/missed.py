"""Puts the rows into Redis that were committed and not put: their process died, or Redis was away.

Note [Above a mark]
A row that waits says nowhere whether Redis has it: that would be a second write for each job. So the worker with the
upkeep lease looks through the rows that are new since its last look, by primary key, and puts those that still wait;
for nearly all of them Redis answers that they are there. How far it has looked stands in Redis, and is gone with what
was put there: then all open rows are put. What a restored database has open again, the next full sweep puts.

Note [Gaps]
Keys are not given in the order of commits: a transaction may commit a row an hour after rows with greater keys were
seen. So keys that were missing below the mark are remembered, as ranges, and looked for at each look, until no
transaction of that time is open any more (PostgreSQL tells), or for GAP_SECONDS. There are at most MOST_GAPS; what is
beyond that is left to the next full sweep. SQLite has one writer, whose keys are in the order of its commits.
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

#: Rows that one query reads, and pages that one look reads at most: 100,000 rows.
PAGE, MOST_PAGES = 5_000, 20
#: Rows that are put at a time where all open ones are.
PUT = 1_000
#: For so long a gap is looked at where the database does not tell which transactions are open.
GAP_SECONDS = 2 * 3600
#: Ranges that are remembered, and that one query asks for.
MOST_GAPS, RANGES = 10_000, 200
#: The last key that was looked at, where no gap is left: until there is another row nothing is asked of Redis.
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
    """How far the rows were looked through, and what was missing there."""

    seen: int
    gaps: list[Gap] = field(default_factory=list)

    @classmethod
    def read(cls, text: str | None) -> "Mark | None":
        """Return what was noted; None where nothing was, or nothing that can be read."""
        try:
            seen, gaps = json.loads(text or "")
            return cls(int(seen), [Gap(int(a), int(b), int(since), before) for a, b, since, before in gaps])
        except (ValueError, TypeError, LookupError):
            return None

    def as_text(self) -> str:
        """Return it as it is noted."""
        gaps = [(gap.first, gap.last, gap.since, gap.before) for gap in self.gaps[-MOST_GAPS:]]
        return json.dumps((self.seen, gaps), separators=(",", ":"))


def put_missed(broker: Broker) -> int:
    """Put the rows that were not put; return how many that were.

    Raises:
        BrokerError: Some may have been put; the next look begins where this one did.
        DatabaseError: So too.
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
    elif mark.seen > last:  # the last rows were deleted, or the database is a backup: what comes is above the last one
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
    """Note that all open rows up to this key were put, as by a rebuild; what was noted before knows of more."""
    _done.pop(broker, None)
    if Mark.read(broker.missed_mark()) is None:
        broker.note_missed_mark(_mark_behind(last).as_text())


def _mark_behind(last: int) -> Mark:
    """Return the mark where all open rows up to this key were put: the newest keys are looked through for gaps."""
    return Mark(max(0, last - PAGE * MOST_PAGES) if _has_gaps() else last)


def _has_gaps() -> bool:
    return connections[ledger.database()].vendor != "sqlite"


def last_key() -> int:
    """Return the greatest key of a row now."""
    return Run._base_manager.using(ledger.database()).aggregate(last=Max("pk"))["last"] or 0


def _look_on(broker: Broker, mark: Mark) -> int:
    """Look through the rows behind the mark, and move it."""
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
    """Put the rows that have come into gaps; forget gaps that no row can come into any more. See Note [Gaps]."""
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
    """Return what is left of a gap without these keys."""
    parts, first = [], gap.first
    for pk in [*pks, gap.last + 1]:
        if pk > first:
            parts.append(Gap(first, pk - 1, gap.since, gap.before))
        first = pk + 1
    return parts


def _snapshot() -> tuple[int | None, int | None]:
    """Return the oldest transaction that is open, and the one that comes next; None where the database does not tell.

    A transaction draws a key before it gets its number, and has both within a second. So a transaction that can still
    fill a gap has a number below `following`, as it is a second after the gap was seen. Once the oldest open
    transaction has a greater number, no row can come into the gap any more.
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
