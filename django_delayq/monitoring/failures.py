"""What failed of late, grouped by task and error: runs and jobs of the ledger. Knows no admin; shows nothing."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from .. import ledger
from ..models import Run, Status

#: So much of a fingerprint counts.
MOST_KEPT = 120
#: A title of so many characters may have been cut: `MAX_TITLE_CHARS` of `worker/calling.py`.
_CUT_AT = 200
QUOTED, NUMBER = "'…'", "#"

_CLASS = re.compile(r"[^\W\d][\w.]*(?=: |$)")
_QUOTES = re.compile(r"""(?<!\w)[bfruBFRU]{0,2}(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)|“[^”]*”|«[^»]*»|`[^`]*`""")
_OPEN_QUOTE = re.compile(r"""(?<![\w…])[bfruBFRU]{0,2}['"“«`][^'"”»`]*\Z""")
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_HEX = r"0[xX][0-9a-fA-F]+|(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}"
_RANDOM = r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{16,}"
_WORDS = re.compile(rf"(?<![A-Za-z0-9])(?:{_UUID}|{_HEX}|{_RANDOM})(?![A-Za-z0-9])")
_NUMBERS = re.compile(r"(?:(?<![\w)\]])[-+])?\d+(?:[.,:/-]\d+)*(?:[eE][-+]?\d+(?!\w))?")
_SEVERAL = re.compile(rf"({NUMBER}|{QUOTED})(?:,\s?\1)+")


def fingerprint(title: str) -> str:
    """Return what the titles of all such errors have in common. See Note [What is left out].

    What is secret in a title is not hidden, but for what stands in quotes.
    """
    line = " ".join(title[:_CUT_AT].split())
    head = _CLASS.match(line)
    begin = head.end() if head else 0
    rest = _QUOTES.sub(QUOTED, line[begin:])
    if len(title) >= _CUT_AT:
        rest = _OPEN_QUOTE.sub(QUOTED, rest)
    rest = _NUMBERS.sub(NUMBER, _WORDS.sub(NUMBER, rest))
    return (line[:begin] + _SEVERAL.sub(r"\1", rest))[:MOST_KEPT]


def digest_of(kind: str, task: str, text: str) -> str:
    """Return the name of a group: the same for the same kind, task and fingerprint, as an address may have it."""
    return hashlib.sha256("\0".join((kind, task, text)).encode(errors="replace")).hexdigest()[:32]


#: So many rows are read.
MOST_READ = 5_000
#: What failed so long ago is not told, and what was seen first so short a time ago is new.
KEPT, NEW = timedelta(days=7), timedelta(days=1)
_COLUMNS = ("pk", "schedule_id", "schedule_name", "task", "reason", "status", "created_at", "dismissed_until")
_TIMES = ("due_at", "finished_at")


class Failure(NamedTuple):
    """A run that failed or was lost at this time."""

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
    """What was read at `now`, the newest rows first; `cut` says that there is more."""

    rows: Sequence[Failure]
    now: datetime
    cut: bool

    def reaches(self, since: datetime) -> bool:
        """Say whether all rows that were made from then on were read."""
        return not self.cut or (bool(self.rows) and self.rows[-1].created_at < since)


@dataclass(slots=True)
class RunGroup:
    """Failures of one task with one fingerprint, of schedules or of jobs.

    `runs` are their keys; `schedules` their keys and the names they had, what failed last first; some may be deleted.
    `rows` are all of the group that were read, with their times. All but `first` and `rows` is of the time asked for.
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
        """True where jobs have failed, which have no schedule."""
        return self.last.schedule is None

    @property
    def is_dismissed(self) -> bool:
        """True while nothing has failed since somebody dismissed it. See Note [Dismissed]."""
        return self.last.dismissed_until is not None and self.last.at <= self.last.dismissed_until


def read_failures(now: datetime) -> Failures:
    """Read what has failed of late, in two queries. See Note [The newest ones]."""
    found: list[Failure] = []
    for status in (Status.FAILED, Status.LOST):  # each begins where its part of the index does
        rows = ledger.with_status(status).exclude(reason="cancelled", started_at=None)  # while it waited
        read = rows.order_by("-pk").values_list(*_COLUMNS, *_TIMES)[: MOST_READ + 1]
        found += [Failure._make((*row[:-2], row[-1] or row[-2])) for row in read]
    found.sort(key=lambda row: row.pk, reverse=True)
    since, newest = now - KEPT, found[:MOST_READ]
    cut = len(found) > MOST_READ and newest[-1].created_at >= since
    return Failures([row for row in newest if row.at >= since], now, cut)


def group_failures(found: Failures, since: datetime) -> list[RunGroup]:
    """Return the groups of what has failed since then: new ones first, then what failed last.

    A group is new if its first failure is less than `NEW` old, as far as was read; where less than that was read,
    nobody knows, and none is.
    """
    groups: dict[str, RunGroup] = {}
    digests: dict[tuple[bool, str, str], tuple[str, str]] = {}
    for row in sorted(found.rows, key=lambda row: row.at, reverse=True):
        key = row.schedule is None, row.task, row.reason
        known = digests.get(key)
        if known is None:
            text = fingerprint(row.reason)
            known = digests[key] = digest_of("job" if key[0] else "run", row.task, text), text
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
        group.is_new = group.first >= yesterday and found.reaches(yesterday)
    return sorted(groups.values(), key=lambda group: not group.is_new)


def dismiss(group: RunGroup, until: datetime) -> None:
    """Hide a group as far as it was seen: whatever of it fails after `until` shows it again."""
    _mark([pk for pk, at in group.rows if at <= until], until)


def take_back(group: RunGroup) -> bool:
    """Show a group again; False where its runs are gone."""
    return _mark([pk for pk, _ in group.rows], None)


def _mark(runs: list[int], until: datetime | None) -> bool:
    rows = Run._base_manager.using(ledger.database()).filter(pk__in=runs)
    return rows.update(dismissed_until=until) > 0
