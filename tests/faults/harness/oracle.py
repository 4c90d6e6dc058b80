"""The oracle: due points, as the definitions have them, against the rows of the ledger. It has no opinion.

Missing: a due point with no outcome and in no skipped stretch. Doubled: a point with more than one, overlapping
stretches included. Extra: an outcome of a point that no definition had. False: an outcome that says that a task ran,
where no task did.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from django_delayq.models import Run, Schedule
from django_delayq.recurrence import Recurrence, from_ms, to_ms
from django_delayq.recurrence.point import utcnow

from .trace import Trace

CLOSED = frozenset(("succeeded", "failed", "skipped", "lost"))


@dataclass(slots=True)
class Version:
    """One definition: its points lie after `begin`, up to the `begin` of the next one. None = it has no points."""

    begin: datetime
    rule: Recurrence | None
    every: timedelta | None = None  # fixed delay: the next point is the last finish plus this
    #: When it was certainly committed. What comes due between `begin` and the commit may still run by the one before.
    committed: datetime | None = None


@dataclass(slots=True)
class History:
    """All that a schedule has been. `note` after each edit of the recurrence, the window or `enabled`."""

    pk: int
    name: str
    versions: list[Version] = field(default_factory=list)
    #: What was done to it, and when: for whoever must explain what is missing.
    diary: list[tuple[datetime, str]] = field(default_factory=list)
    #: Nobody owes a deleted schedule an outcome.
    deleted: bool = False

    @classmethod
    def of(cls, schedule: Schedule) -> "History":
        """Begin with the definition as the database has it."""
        history = cls(schedule.pk, schedule.name)
        history.note(schedule)
        return history

    def note(self, schedule: Schedule) -> None:
        """Add the definition as the database has it now."""
        schedule.refresh_from_db()
        begin: datetime = schedule.effective_from
        what = f"{schedule.cron or schedule.every or schedule.at} {schedule.overlap} {schedule.missed}"
        self.diary.append((utcnow(), f"{'' if schedule.enabled else 'paused '}{what}, effective from {begin:%X.%f}"))
        if self.versions and self.versions[-1].begin == begin:
            return
        delay = schedule.every if schedule.kind == "every" and schedule.every_from == "finish" else None
        self.versions.append(Version(begin, schedule.recurrence if schedule.enabled else None, delay, utcnow()))

    @property
    def computed(self) -> bool:
        """Whether the points follow from the definitions alone. Those of a fixed delay follow from the runs."""
        return all(version.every is None for version in self.versions)


def histories_of(schedules: Iterable[Schedule]) -> list[History]:
    """Return the histories of schedules that have not been edited yet."""
    return [History.of(schedule) for schedule in schedules]


def due_points(history: History, until: datetime) -> list[int]:
    """Return the due points in ms up to `until`, one after the other as the rules give them."""
    points = []
    ends = [version.begin for version in history.versions[1:]] + [until]
    for version, end in zip(history.versions, ends, strict=True):
        point = version.rule.next_after(version.begin) if version.rule else None
        while point is not None and point <= min(end, until):
            points.append(to_ms(point))
            point = version.rule.next_after(point) if version.rule else None
    return points


def overtaken_points(history: History) -> set[int]:
    """Return the due points in ms that came between an edit's `begin` and its commit: they may run, and need not."""
    points = set()
    for former, version in pairwise(history.versions):
        point = former.rule.next_after(version.begin) if former.rule else None
        while point is not None and version.committed is not None and point <= version.committed:
            points.add(to_ms(point))
            point = former.rule.next_after(point) if former.rule else None
    return points


@dataclass(slots=True)
class Verdict:
    """What the oracle found. The lists hold (schedule's name, point, what is known), for the message of a test."""

    #: Every due point that there was, in ms.
    due: list[int] = field(default_factory=list)
    missing: list[tuple[str, datetime, str]] = field(default_factory=list)
    doubled: list[tuple[str, datetime, str]] = field(default_factory=list)
    extra: list[tuple[str, datetime, str]] = field(default_factory=list)
    false: list[tuple[str, datetime, str]] = field(default_factory=list)
    #: (due point in ms, seconds from it to the claim) of all that ran.
    latencies: list[tuple[int, float]] = field(default_factory=list)
    #: (schedule, due point in ms, attempt) -> how often it was executed.
    executions: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    @property
    def points(self) -> int:
        """How many due points there were."""
        return len(self.due)

    @property
    def executions_max(self) -> int | None:
        """The most executions of one attempt; None where nothing is known of executions."""
        return max(self.executions.values(), default=None)

    @property
    def executions_mean(self) -> float | None:
        """Executions per attempt: 1 where nothing was repeated."""
        return self.executions.total() / len(self.executions) if self.executions else None

    def latency(self, share: float) -> float | None:
        """Return the latency that this share of the runs did not exceed."""
        ordered = sorted(latency for _, latency in self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.missing or self.doubled or self.extra or self.false)

    def complaints(self) -> str:
        """Return the first of each kind."""
        kinds = {"missing": self.missing, "doubled": self.doubled, "extra": self.extra, "false": self.false}
        return "; ".join(f"{len(found)} {kind}, such as {found[:3]}" for kind, found in kinds.items() if found)

    def during(self, windows: Sequence[tuple[float, float]]) -> "Verdict":
        """Return what concerns the due points within these stretches of wall clock seconds."""

        def within(ms: int) -> bool:
            return any(begin <= ms / 1000 <= end for begin, end in windows)

        kinds = (self.missing, self.doubled, self.extra, self.false)
        return Verdict(
            [ms for ms in self.due if within(ms)],
            *([item for item in kind if within(to_ms(item[1]))] for kind in kinds),
            [item for item in self.latencies if within(item[0])],
            Counter({key: count for key, count in self.executions.items() if within(key[1])}),
        )


def check(histories: Sequence[History], until: datetime, trace: Trace | None = None) -> Verdict:
    """Compare all due points up to `until` with the ledger."""
    verdict = Verdict()
    ledger: dict[int, list[Run]] = {history.pk: [] for history in histories}
    for row in Run.objects.filter(schedule_id__in=list(ledger), origin="due").order_by("due_at", "pk"):
        ledger[row.schedule_id].append(row)
    if trace is not None:  # read after the rows: a run leaves its trace first
        verdict.executions = trace.per_point()
    executed = {(schedule, due_ms) for schedule, due_ms, _ in verdict.executions}
    for history in histories:
        rows = ledger[history.pk]
        _doubled(history, rows, verdict)
        for row in rows:
            if row.started_at and row.claimed_at and row.status in ("succeeded", "failed"):
                verdict.latencies.append((to_ms(row.due_at), (row.claimed_at - row.due_at).total_seconds()))
                if trace is not None and (row.schedule_id, to_ms(row.due_at)) not in executed:
                    verdict.false.append((history.name, row.due_at, row.status))
        (_computed if history.computed else _fixed_delay)(history, rows, until, verdict)
    return verdict


def _end(row: Run) -> datetime:
    return row.last_due_at or row.due_at


def _doubled(history: History, rows: list[Run], verdict: Verdict) -> None:
    reach: Run | None = None
    for row in rows:
        if reach is not None and row.due_at <= _end(reach):
            verdict.doubled.append((history.name, row.due_at, f"{row.status} and {reach.status} {reach.reason}"))
        if reach is None or _end(row) > _end(reach):
            reach = row


def _computed(history: History, rows: list[Run], until: datetime, verdict: Verdict) -> None:
    points = due_points(history, until)
    known = {*points, *overtaken_points(history)}
    verdict.due += points
    covered: set[int] = set()
    status = {to_ms(row.due_at): row.status for row in rows}
    for row in rows:
        if row.status in CLOSED:
            low, high = bisect_left(points, to_ms(row.due_at)), bisect_right(points, to_ms(_end(row)))
            covered.update(points[low:high])
        if row.started_at is not None and row.due_at <= until and to_ms(row.due_at) not in known:
            verdict.extra.append((history.name, row.due_at, row.status))
    if not history.deleted:
        for point in points:
            if point not in covered:
                verdict.missing.append((history.name, from_ms(point), status.get(point, "no row")))


def _fixed_delay(history: History, rows: list[Run], until: datetime, verdict: Verdict) -> None:
    """Follow the chain: each point is the last finish plus a multiple of the delay, the first that is undecided."""
    begin, every = history.versions[-1].begin, history.versions[-1].every
    assert every is not None and history.versions[-1].rule is not None
    assert len(history.versions) == 1, "a fixed delay that is edited is not supported here"
    last, finished = begin, None
    for row in rows:
        if row.due_at > until:
            return
        wanted = _after(history.versions[-1].rule, every, finished, last)
        verdict.due.append(to_ms(row.due_at))
        if row.status not in CLOSED:
            verdict.missing.append((history.name, row.due_at, row.status))
        if to_ms(row.due_at) > to_ms(wanted):
            verdict.missing.append((history.name, wanted, f"the next row is of {row.due_at}"))
        elif to_ms(row.due_at) < to_ms(wanted):
            verdict.extra.append((history.name, row.due_at, f"{row.status}, expected {wanted}"))
        last = max(last, _end(row))
        if row.started_at is not None and row.finished_at is not None:
            finished = row.finished_at if finished is None else max(finished, row.finished_at)
    wanted = _after(history.versions[-1].rule, every, finished, last)
    if wanted <= until and not history.deleted:
        verdict.due.append(to_ms(wanted))
        verdict.missing.append((history.name, wanted, "no row"))


def _after(rule: Recurrence, every: timedelta, finished: datetime | None, last: datetime) -> datetime:
    if finished is None:
        point = rule.next_after(last)
        assert point is not None
        return point
    base = max(last, finished)
    return finished + every * ((base - finished) // every + 1)
