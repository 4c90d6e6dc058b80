"""Decides which rows of the ledger to prune, finds them and deletes them in small batches. Never decides when.

Note [Rows are read once]
The walk visits the schedules that have rows, also deleted ones, by primary key, and the rows of each by the unique
index, oldest first. Rows are read once, a page at a time, so that no statement takes long.

Note [Some rows always stay]
Rows without an outcome, the newest outcome of each schedule's chain, and rows whose pruning cannot be noted in
`ScheduleState.pruned_until` (see `recording.py`). That note must not pass a point that has no row yet: due points and
backfills are pruned only up to `last_due_at`. Manual runs (with unique instants) and deleted schedules need no note.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Exists, OuterRef, Q, QuerySet

from .. import conf
from ..models import Origin, Output, Run, Schedule, ScheduleState
from ..models.run import OUTCOMES
from .bulk import get_database, writer, writing
from .jobs import find_expired
from .locks import leave_locked, lock_free
from .recording import lock_states

#: Outcomes younger than this are kept in any case, for users who look at recent runs.
YOUNG = timedelta(minutes=10)


class OldRun(NamedTuple):
    """The columns that are read of a row that may be pruned."""

    pk: int
    schedule_id: int
    due_at: datetime
    last_due_at: datetime | None
    origin: str
    status: str
    finished_at: datetime
    task: str

    @property
    def until(self) -> datetime:
        return self.last_due_at or self.due_at

    @property
    def noted(self) -> bool:
        """True if the pruning must be noted in the state. See Note [Some rows always stay]."""
        return self.origin != Origin.MANUAL


class KeepRule(NamedTuple):
    """What is pruned of a schedule: outcomes that ended before these instants, except the `newest` rows."""

    before: Mapping[str, datetime] = {}
    newest: int = 0

    @property
    def aged(self) -> Q:
        """The condition without `newest`. A run ends after its due point, which is in an index."""
        ended = Q()
        for status, before in self.before.items():
            ended |= Q(status=status, finished_at__lt=before)
        return Q(due_at__lt=max(self.before.values())) & ended

    def get_seconds_late(self, run: OldRun, now: datetime) -> float:
        """Return for how many seconds a row's age has allowed its pruning; 0 if `keep` allows it at any age."""
        before = self.before[run.status]
        return 0.0 if before >= now - YOUNG else (before - run.finished_at).total_seconds()


def build_rule(keep: str, keep_last: int | None, now: datetime) -> KeepRule:
    """Return the rule for these values of `keep` and `keep_last`; '' and None for a deleted schedule."""
    config = conf.get_config()
    days = {outcome: config.get_days_kept(outcome) for outcome in sorted(OUTCOMES)}
    before = {outcome: now - timedelta(days=kept) for outcome, kept in days.items() if kept is not None}
    if keep == Schedule.Keep.FAILURES:
        return KeepRule(before | dict.fromkeys(("succeeded", "skipped"), now - YOUNG))
    newest = 1 if keep == Schedule.Keep.NONE else keep_last if keep == Schedule.Keep.LAST else None
    if newest:
        return KeepRule(dict.fromkeys(OUTCOMES, now - YOUNG), newest)
    return KeepRule() if keep else KeepRule(before)  # also for unknown or missing values, as SQL may write them


#: Maximum rows per query and per transaction; maximum schedules per batch.
PRUNE_BATCH, MOST_SCHEDULES = 1000, 100
LAST_KEY = 2**63 - 1


class Batch(NamedTuple):
    """Rows to be pruned. After them, schedules up to the key `done` are finished. `late`: see `get_seconds_late`."""

    rows: list[OldRun]
    done: int
    late: float


class Pruned(NamedTuple):
    """The result of a batch: the rows that were deleted, and how many stay because they were locked."""

    rows: list[OldRun]
    left: int


def find_prunable(now: datetime, after: int = 0) -> Iterator[Batch]:
    """Yield batches, some empty, of the rows to prune, of schedules after this key. See Note [Rows are read once]."""
    found, visited, done, late = list[OldRun](), 0, after, 0.0
    for key, rule, pages in _walk(now, after):
        for rows in pages:
            if len(found) + len(rows) > PRUNE_BATCH:
                yield Batch(found, done, late)
                found, visited, late = [], 0, 0.0
            found = found + rows
            late = max(late, *(rule.get_seconds_late(row, now) for row in rows))
        done, visited = key, visited + 1
        if visited == MOST_SCHEDULES:
            yield Batch(found, done, late)
            found, visited, late = [], 0, 0.0
    yield Batch(found, LAST_KEY, late)


def _walk(now: datetime, after: int) -> Iterator[tuple[int, KeepRule, Iterator[list[OldRun]]]]:
    runs = _query_runs().order_by("schedule_id", "due_at", "origin").values_list("schedule_id", "due_at")
    keeps = Schedule._base_manager.using(get_database()).values_list("keep", "keep_last")
    while oldest := runs.filter(schedule_id__gt=after).first():
        after, due_at = oldest
        stored = keeps.filter(pk=after).first()
        rule = build_rule(*(stored or ("", None)), now)
        aged = rule.before and due_at < max(rule.before.values())
        yield after, rule, _read_pages(after, rule, deleted=stored is None) if aged else iter(())


def _read_pages(schedule: int, rule: KeepRule, *, deleted: bool) -> Iterator[list[OldRun]]:
    rows = _query_runs().filter(rule.aged, schedule_id=schedule).order_by("due_at", "origin")
    decided = _query_runs().filter(schedule_id=schedule, status__in=sorted(OUTCOMES)).order_by("-due_at", "-origin")
    if rule.newest:
        end = decided.values_list("due_at", "origin")[rule.newest : rule.newest + 1].first()
        if end is None:
            return
        rows = rows.filter(due_at__lte=end[0]).exclude(due_at=end[0], origin__gt=end[1])
    newest = decided.filter(origin=Origin.DUE).values_list("pk", flat=True).first()
    if newest is not None and not deleted:
        rows = rows.exclude(pk=newest)
    following = rows
    while page := [OldRun(*row) for row in following.values_list(*OldRun._fields)[:PRUNE_BATCH]]:
        yield page
        last = page[-1]
        following = rows.filter(due_at__gte=last.due_at).exclude(due_at=last.due_at, origin__lte=last.origin)


def _query_runs() -> QuerySet[Run]:
    return Run._base_manager.using(get_database())


def prune(rows: Sequence[OldRun]) -> Pruned:
    """Delete rows and note it, in one transaction; locked rows stay. See Note [Some rows always stay]."""
    using = get_database()
    if not rows:
        return Pruned([], 0)
    with writing(using):
        generations, states, taken = lock_states({row.schedule_id for row in rows}, using)
        lasts = {pk: states[pk].last_due_at if pk in states else None for pk in generations}
        going = [row for row in rows if row.schedule_id not in taken and _can_prune(row, lasts)]
        free, locked = lock_free(Run, [row.pk for row in going], using)
        gone = [row for row in going if row.pk in free]
        delete_with_outputs(free, using)
        horizons: dict[int, datetime] = {}
        for row in gone:
            state = states.get(row.schedule_id)
            if row.noted and state is not None:
                state.pruned_until = horizons[state.schedule_id] = max(state.pruned_until or row.until, row.until)
        writer(ScheduleState, ("schedule_id", "pruned_until"), using).update(sorted(horizons.items()))
    return Pruned(gone, len(locked) + sum(row.schedule_id in taken for row in rows))


def count_prunable(batch: Batch) -> list[OldRun]:
    """Return the rows of a batch that `prune` would delete if nothing is locked."""
    pks = {row.schedule_id for row in batch.rows}
    schedules = Schedule._base_manager.using(get_database()).filter(pk__in=pks)
    lasts = dict(schedules.values_list("pk", "state__last_due_at"))
    return [row for row in batch.rows if _can_prune(row, lasts)]


def _can_prune(run: OldRun, lasts: Mapping[int, datetime | None]) -> bool:
    """Return True if a row's pruning can be noted; `lasts`: `last_due_at` by schedule. Note [Some rows always stay]."""
    if not run.noted or run.schedule_id not in lasts:
        return True
    last = lasts[run.schedule_id]
    return last is not None and run.until <= last


def delete_with_outputs(pks: Collection[int], using: str) -> None:
    """Delete runs and their outputs, three times as fast as Django's cascade."""
    Output._base_manager.using(using).filter(run__in=pks).delete()
    Run._base_manager.using(using).filter(pk__in=pks)._raw_delete(using)


def prune_outputs(limit: int) -> int:
    """Delete outputs whose runs were deleted by SQL, among the `limit` oldest; return how many."""
    outputs = Output._base_manager.using(get_database())
    oldest = list(outputs.order_by("pk").values_list("pk", flat=True)[:limit])
    has_run = Exists(Run._base_manager.filter(pk=OuterRef("run_id")))
    return outputs.filter(~has_run, pk__in=oldest).delete()[0] if oldest else 0


def prune_expired(limit: int) -> int:
    """Delete up to `limit` expired jobs that no transaction has locked; return how many."""
    using, pks = get_database(), set(find_expired(limit))
    if pks:
        with writing(using):
            free = pks - leave_locked(Run, pks, using)
            pks = free.intersection(find_expired(limit))  # a job may have been retried since
            delete_with_outputs(pks, using)
    return len(pks)
