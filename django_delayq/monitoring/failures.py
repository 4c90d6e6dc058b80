"""Groups recent failures of runs and jobs by task and error. Knows no admin.

Note [New failures undo a dismissal]
Dismissing a group stores the time in its rows. It hides the group until a later failure, even of a retried row.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from .. import ledger
from ..models import Run, Status

#: Maximum characters of a fingerprint.
MOST_KEPT = 120
#: Titles of this length may have been truncated: `MAX_TITLE_CHARS` of `worker/calling.py`.
_CUT_AT = 200
QUOTED, NUMBER = "'…'", "#"

_CLASS = re.compile(r"[^\W\d][\w.]*(?=: |$)")
_QUOTES = re.compile(r"""(?<!\w)[bfruBFRU]{0,2}(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)|“[^”]*”|«[^»]*»|`[^`]*`""")
_OPEN_QUOTE = re.compile(r"""(?<![\w…])[bfruBFRU]{0,2}['"“«`][^'"”»`]*\Z""")
#: Numbers, times, UUIDs, addresses and random words: all that has a digit.
_NUMBERED = re.compile(r"(?:(?<![\w)\]])[-+])?(?<!\w)\w*\d\w*(?:[.,:/+-]\w+)*")
_SEVERAL = re.compile(rf"({NUMBER}|{QUOTED})(?:,\s?\1)+")


def compute_fingerprint(title: str) -> str:
    """Return a title with the class of its error, in which marks replace quoted texts and words with digits."""
    line = " ".join(title[:_CUT_AT].split())
    head = _CLASS.match(line)
    begin = head.end() if head else 0
    rest = _QUOTES.sub(QUOTED, line[begin:])
    if len(title) >= _CUT_AT:
        rest = _OPEN_QUOTE.sub(QUOTED, rest)
    rest = _NUMBERED.sub(NUMBER, rest)
    return (line[:begin] + _SEVERAL.sub(r"\1", rest))[:MOST_KEPT]


def compute_digest(kind: str, task: str, text: str) -> str:
    """Return a group's id: a hash of kind, task and fingerprint that is safe in a URL."""
    return hashlib.sha256("\0".join((kind, task, text)).encode(errors="replace")).hexdigest()[:32]


#: Maximum rows read.
MOST_READ = 5_000
#: Maximum age of failures that are read, and maximum age of a group's first failure for it to be new.
KEPT, NEW = timedelta(days=7), timedelta(days=1)
_COLUMNS = ("pk", "schedule_id", "schedule_name", "task", "reason", "status", "created_at", "dismissed_until")
_TIMES = ("due_at", "finished_at")


class Failure(NamedTuple):
    """A run that failed or was lost, at `at`."""

    pk: int
    schedule: int | None
    name: str
    task: str
    reason: str
    status: str
    created_at: datetime
    dismissed_until: datetime | None
    at: datetime


class Failures(NamedTuple):
    """Failures read at `now`, the newest rows first; `cut` if there are more than MOST_READ."""

    rows: Sequence[Failure]
    now: datetime
    cut: bool

    def has_all_since(self, since: datetime) -> bool:
        """Return whether all rows created since then were read."""
        return not self.cut or (bool(self.rows) and self.rows[-1].created_at < since)


@dataclass(slots=True)
class RunGroup:
    """Failures of one task with one fingerprint, of schedules or of jobs, in the requested period.

    `first` and `rows` (primary keys and times) cover all failures read. `schedules` may include deleted ones.
    """

    digest: str
    task: str
    text: str
    last: Failure
    first: datetime
    is_new: bool = False
    times: list[datetime] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    rows: list[tuple[int, datetime]] = field(default_factory=list)
    schedules: dict[int, str] = field(default_factory=dict)

    @property
    def of_jobs(self) -> bool:
        return self.last.schedule is None

    @property
    def is_dismissed(self) -> bool:
        """True if there is no failure after the group was dismissed. See Note [New failures undo a dismissal]."""
        return self.last.dismissed_until is not None and self.last.at <= self.last.dismissed_until


def read_failures(now: datetime) -> Failures:
    """Read the newest MOST_READ failures, with two queries by index. So counts of groups may be partial."""
    found: list[Failure] = []
    for status in (Status.FAILED, Status.LOST):  # separately, so that each uses the start of its part of the index
        rows = ledger.query_status(status).exclude(reason="cancelled", started_at=None)  # cancelled while waiting
        read = rows.order_by("-pk").values_list(*_COLUMNS, *_TIMES)[: MOST_READ + 1]
        found += [Failure._make((*row[:-2], row[-1] or row[-2])) for row in read]
    found.sort(key=lambda row: row.pk, reverse=True)
    since, newest = now - KEPT, found[:MOST_READ]
    cut = len(found) > MOST_READ and newest[-1].created_at >= since
    return Failures([row for row in newest if row.at >= since], now, cut)


def group_failures(found: Failures, since: datetime) -> list[RunGroup]:
    """Return groups with failures since an instant: new ones first (see `NEW`), then by latest failure."""
    groups: dict[str, RunGroup] = {}
    digests: dict[tuple[bool, str, str], tuple[str, str]] = {}
    for row in sorted(found.rows, key=lambda row: row.at, reverse=True):
        key = row.schedule is None, row.task, row.reason
        known = digests.get(key)
        if known is None:
            text = compute_fingerprint(row.reason)
            known = digests[key] = compute_digest("job" if key[0] else "run", row.task, text), text
        group = groups.get(known[0])
        if group is None:
            if row.at < since:
                continue
            group = groups[known[0]] = RunGroup(known[0], row.task, known[1], row, row.at)
        group.first = row.at
        group.rows.append((row.pk, row.at))
        if row.at >= since:
            group.times.append(row.at)
            group.runs.append(row.pk)
            if row.schedule is not None:
                group.schedules.setdefault(row.schedule, row.name)
    yesterday = found.now - NEW
    for group in groups.values():
        group.is_new = group.first >= yesterday and found.has_all_since(yesterday)
    return sorted(groups.values(), key=lambda group: not group.is_new)


def dismiss(group: RunGroup, until: datetime) -> None:
    _mark([pk for pk, at in group.rows if at <= until], until)


def take_back(group: RunGroup) -> bool:
    """Show a dismissed group again; return False if its runs are deleted."""
    return _mark([pk for pk, _ in group.rows], None)


def _mark(runs: list[int], until: datetime | None) -> bool:
    rows = Run._base_manager.using(ledger.get_database()).filter(pk__in=runs)
    return rows.update(dismissed_until=until) > 0
