"""Decides which rows of the ledger to prune, finds them and deletes them in small batches. Never decides when.

Note [The walk]
The walk visits schedules by primary key, and the rows of each by the unique index, oldest first. One query per page
of schedules returns the oldest row of each that could be pruned, and the next key that any row has: deleted schedules
are found in the gaps. To continue a walk, a caller passes the last schedule that was done. Rows are read once, a page
at a time, and checked one by one: no statement takes long, however many rows are kept.

Note [What is never pruned]
Rows without an outcome, the newest outcome of each schedule's chain, and rows whose pruning cannot be noted in
`ScheduleState.pruned_until` (see `recording.py`) are never pruned. That note must not pass a point that has no row
yet. So due points and backfills are pruned only up to `last_due_at`, where all points are decided or have an open
row, and not at all without a state. A manual run needs no note, as no other row gets its instant; nor do rows of a
deleted schedule, as nothing can be recorded without it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Case, DateTimeField, Exists, OuterRef, Q, QuerySet, Subquery, Value, When

from .. import conf
from ..models import Origin, Output, Run, Schedule, ScheduleState
from ..models.run import OUTCOMES
from .bulk import database, writer, writing
from .jobs import find_expired
from .locks import leave_locked, lock_free
from .recording import lock_states
from .rows import StateRow

#: Outcomes younger than this are kept in any case, for users who look at recent runs.
YOUNG = timedelta(minutes=10)
#: Outcomes pruned after YOUNG if only failures are kept.
_GOES_AT_ONCE = ("succeeded", "skipped")


class OldRun(NamedTuple):
    """The columns that are read of a row that may be pruned."""

    pk: int
    schedule_id: int
    due_at: datetime
    last_due_at: datetime | None
    origin: str
    status: str
    finished_at: datetime | None
    task: str

    @property
    def until(self) -> datetime:
        """The last due point that the row covers."""
        return self.last_due_at or self.due_at

    @property
    def noted(self) -> bool:
        """True if the pruning must be noted in the state. See Note [What is never pruned]."""
        return self.origin != Origin.MANUAL


class Rule(NamedTuple):
    """What is pruned of a schedule: outcomes that ended before these instants, except the `newest` rows."""

    before: Mapping[str, datetime] = {}
    newest: int = 0

    def goes(self, run: OldRun) -> bool:
        """Return True if a row that is not among the newest is old enough. Rows without an outcome never are."""
        before = self.before.get(run.status)
        return before is not None and run.finished_at is not None and run.finished_at < before

    @property
    def aged(self) -> Q:
        """The same as a condition, without `newest`. A run ends after its due point, which is in an index."""
        ended = Q()
        for status, before in self.before.items():
            ended |= Q(status=status, finished_at__lt=before)
        return Q(due_at__lt=max(self.before.values())) & ended

    def late(self, run: OldRun, now: datetime) -> float:
        """Return for how many seconds a row could have been pruned; 0 if newer runs, not its age, allow it."""
        before = self.before.get(run.status)
        if before is None or before >= now - YOUNG or run.finished_at is None:
            return 0.0
        return (before - run.finished_at).total_seconds()


def rule_of(keep: str, keep_last: int | None, now: datetime) -> Rule:
    """Return the rule for these values of `keep` and `keep_last`; '' and None for a deleted schedule."""
    config = conf.get_config()
    days = {outcome: config.days_kept(outcome) for outcome in sorted(OUTCOMES)}
    before = {outcome: now - timedelta(days=kept) for outcome, kept in days.items() if kept is not None}
    if keep == Schedule.Keep.FAILURES:
        return Rule(before | dict.fromkeys(_GOES_AT_ONCE, now - YOUNG))
    newest = 1 if keep == Schedule.Keep.NONE else keep_last if keep == Schedule.Keep.LAST else None
    if newest:
        return Rule(dict.fromkeys(OUTCOMES, now - YOUNG), newest)
    return Rule() if keep else Rule(before)  # also for unknown or missing values, as SQL may write them


def may_go(run: OldRun, state: StateRow | None) -> bool:
    """Return True if the pruning of a row can be noted. See Note [What is never pruned]."""
    if not run.noted:
        return True
    return state is not None and state.last_due_at is not None and run.until <= state.last_due_at


#: Maximum rows per query and per transaction; maximum schedules per transaction.
PRUNE_BATCH, _MOST_SCHEDULES = 1000, 100
#: Schedules per query.
_PAGE = 500
_NO_KEY, LAST_KEY, _EARLIEST = 0, 2**63 - 1, datetime.min.replace(tzinfo=UTC)


class Batch(NamedTuple):
    """Rows to be pruned. After them, schedules up to the key `done` are finished. `late`: see `Rule.late`."""

    rows: list[OldRun]
    done: int
    late: float


class Pruned(NamedTuple):
    """The result of a batch: the rows that were deleted, and how many stay because they were locked."""

    rows: list[OldRun]
    left: int


class _Part(NamedTuple):
    """A schedule, perhaps a deleted one, and where the walk through its rows begins; None if none can go."""

    key: int
    rule: Rule = Rule()
    begin: datetime | None = None
    deleted: bool = False


def find_prunable(now: datetime, after: int = _NO_KEY) -> Iterator[Batch]:
    """Yield batches of the rows to be pruned of the schedules after this key. Some are empty. See Note [The walk]."""
    found, keys, done = list[OldRun](), set[int](), after
    steps, late = 0, 0.0
    for part in _parts(now, after):
        for rows in _chosen(part):
            if found and len(found) + len(rows) > PRUNE_BATCH:
                yield Batch(found, done, late)
                found, keys, steps, late = [], set(), 0, 0.0
            found, steps = found + rows, steps + 1
            keys.add(part.key)
            late = max([late, *(part.rule.late(row, now) for row in rows)])
        done, steps = part.key, steps + 1
        if len(keys) >= _MOST_SCHEDULES or steps >= _PAGE:
            yield Batch(found, done, late)
            found, keys, steps, late = [], set(), 0, 0.0
    yield Batch(found, LAST_KEY, late)


def _runs() -> QuerySet[Run]:
    return Run._base_manager.using(database())


def _parts(now: datetime, after: int) -> Iterator[_Part]:
    """Yield the schedules after this key, including deleted ones if the settings limit the age of rows."""
    rule = rule_of("", None, now)
    following: int | None = _NO_KEY if rule.before else None  # the next key that has rows, if known
    while page := list(_asked(now, after)):
        for pk, keep, keep_last, oldest, follows in page:
            if following is not None and following < pk:
                yield from _deleted(rule, after, pk)
            own = rule_of(keep, keep_last, now)
            yield _Part(pk, own, _EARLIEST if own.newest else oldest)
            after, following = pk, follows
    if following is not None:
        yield from _deleted(rule, after, LAST_KEY)


def _asked(now: datetime, after: int) -> QuerySet[Any, Any]:
    """Return a page: key, `keep`, `keep_last`, the oldest row that is old enough, the next key with rows."""
    when = []
    for keep in ("", Schedule.Keep.FAILURES):
        rule = rule_of(keep, None, now)
        if rule.before:
            old = _runs().filter(rule.aged, schedule_id=OuterRef("pk")).order_by("due_at", "origin")
            when.append(When(keep=keep, then=Subquery(old.values("due_at")[:1])))
    unknown = Value(None, DateTimeField())
    nexts = _runs().filter(schedule_id__gt=OuterRef("pk")).order_by("schedule_id", "due_at", "origin")
    follows: Any = Subquery(nexts.values("schedule_id")[:1]) if rule_of("", None, now).before else unknown
    rows = Schedule._base_manager.using(database()).filter(pk__gt=after).order_by("pk")
    oldest: Any = Case(*when, default=unknown) if when else unknown
    return rows.values_list("pk", "keep", "keep_last", oldest, follows)[:_PAGE]


def _deleted(rule: Rule, after: int, before: int) -> Iterator[_Part]:
    while True:
        rows = _runs().filter(schedule_id__gt=after, schedule_id__lt=before)
        first = rows.order_by("schedule_id", "due_at", "origin").values_list("schedule_id", "due_at").first()
        if first is None:
            return
        after, begin = first
        yield _Part(after, rule, begin, deleted=True)


def _chosen(part: _Part) -> Iterator[list[OldRun]]:
    if part.begin is None:
        return
    decided = _runs().filter(schedule_id=part.key, status__in=sorted(OUTCOMES)).order_by("-due_at", "-origin")
    end = None
    if part.rule.newest:
        end = decided.values_list("due_at", "origin")[part.rule.newest : part.rule.newest + 1].first()
        if end is None:
            return
    rows = _runs().filter(schedule_id=part.key).order_by("due_at", "origin").values_list(*OldRun._fields)
    rows = rows.filter(due_at__lte=end[0]) if end else rows.filter(due_at__lt=max(part.rule.before.values()))
    spared = None if part.deleted else decided.filter(origin=Origin.DUE).values_list("pk", flat=True).first()
    begin, last = part.begin, (part.begin, "")
    while page := [OldRun(*row) for row in rows.filter(due_at__gte=begin)[:PRUNE_BATCH]]:
        yield [
            row
            for row in page
            if last < (row.due_at, row.origin) and (end is None or (row.due_at, row.origin) <= end)
            and row.pk != spared and part.rule.goes(row)
        ]  # fmt: skip
        if len(page) < PRUNE_BATCH:
            return
        begin, last = page[-1].due_at, (page[-1].due_at, page[-1].origin)


def prune(rows: Sequence[OldRun]) -> Pruned:
    """Delete rows, and note it in the states of their schedules, in one transaction.

    Rows that are locked, or whose pruning cannot be noted, stay: see Note [What is never pruned].

    Raises:
        DatabaseError: Nothing was deleted.
    """
    using = database()
    if not rows:
        return Pruned([], 0)
    with writing(using):
        generations, states, taken = lock_states({row.schedule_id for row in rows}, using)
        going = [row for row in rows if row.schedule_id not in taken and _may_go(row, generations, states)]
        free, locked = lock_free(Run, [row.pk for row in going], using)
        gone = [row for row in going if row.pk in free]
        delete_with_outputs(free, using)
        horizons: dict[int, datetime] = {}
        for row in gone:
            state = states.get(row.schedule_id)
            if row.noted and state is not None:
                known = horizons.get(row.schedule_id) or state.pruned_until or row.until
                horizons[row.schedule_id] = max(known, row.until)
        writer(ScheduleState, ("schedule_id", "pruned_until"), using).update(sorted(horizons.items()))
    return Pruned(gone, len(locked) + sum(row.schedule_id in taken for row in rows))


def _may_go(row: OldRun, generations: dict[int, int], states: dict[int, StateRow]) -> bool:
    return row.schedule_id not in generations or may_go(row, states.get(row.schedule_id))


def count_prunable(batch: Batch) -> list[OldRun]:
    """Return the rows of a batch that `prune` would delete if nothing is locked."""
    using = database()
    pks = {row.schedule_id for row in batch.rows}
    lasts = dict(Schedule._base_manager.using(using).filter(pk__in=pks).values_list("pk", "state__last_due_at"))
    states = {pk: StateRow(pk, last) for pk, last in lasts.items()}
    return [row for row in batch.rows if row.schedule_id not in lasts or may_go(row, states[row.schedule_id])]


def delete_with_outputs(pks: Collection[int], using: str) -> None:
    """Delete runs and their outputs, in a statement each. Django's cascade takes three times as long."""
    Output._base_manager.using(using).filter(run__in=pks).delete()
    Run._base_manager.using(using).filter(pk__in=pks)._raw_delete(using)


def prune_outputs(limit: int) -> int:
    """Delete outputs whose runs were deleted by SQL, among the `limit` oldest; return how many."""
    outputs = Output._base_manager.using(database())
    oldest = list(outputs.order_by("pk").values_list("pk", flat=True)[:limit])
    has_run = Exists(Run._base_manager.filter(pk=OuterRef("run_id")))
    return outputs.filter(~has_run, pk__in=oldest).delete()[0] if oldest else 0


def prune_expired(limit: int) -> int:
    """Delete up to `limit` expired jobs that no transaction has locked; return how many."""
    using, pks = database(), set(find_expired(limit))
    if pks:
        with writing(using):
            free = pks - leave_locked(Run, pks, using)
            pks = free.intersection(find_expired(limit))  # a job may have been retried since
            delete_with_outputs(pks, using)
    return len(pks)
