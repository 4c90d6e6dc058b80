"""Brings Redis and the open rows of the ledger together: runs apart from their chains, and chains that nobody ends."""

from collections.abc import Iterator, Sequence

from django.db.models import QuerySet

from .. import chain, ledger
from ..broker import Broker, Definition
from ..models import Run
from ..rows import AnyRun
from ..timing import to_ms
from .compare import LONGEST_WAIT_MS
from .fast import enqueue_runs
from .write import PAGE


def open_pages(queues: Sequence[str] | None = None) -> Iterator[list[Run]]:
    """Return pages of runs apart from their chains that have no outcome: waiting orders, retries, runs that died."""
    rows = ledger.open_apart()
    return pages_of(rows if queues is None else rows.filter(queue__in=queues))


def pages_of(rows: QuerySet[Run]) -> Iterator[list[Run]]:
    """Yield these runs in pages, the oldest first."""
    last = 0
    while page := list(rows.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield page
        last = page[-1].pk


def put_back(broker: Broker, runs: Sequence[AnyRun], *, dry_run: bool = False) -> list[str]:
    """Put open runs back that Redis has lost, mend those of which it has a part; return a line for each."""
    now_ms = broker.now_ms()
    views = broker.views([(chain.run_member_of(run.pk), run.queue) for run in runs])
    missing, damaged = [], []
    for run, view in zip(runs, views, strict=True):
        if view.score_ms is None:
            missing.append(run)
        elif view.point_ms is None or view.generation is None or view.score_ms > now_ms + LONGEST_WAIT_MS:
            damaged.append(run)
    if not dry_run:
        enqueue_runs(broker, missing)
        for run in damaged:
            member, due_ms = chain.run_member_of(run.pk), to_ms(run.due_at)
            shard = broker.shard_of(member, run.queue)
            broker.upsert(shard, [Definition(member, 0, due_ms, min(due_ms, now_ms))], reset=True)
    lines = [f"{run}: put back" for run in missing]
    return lines + [f"{run}: repaired, a part of its entry was damaged" for run in damaged]


def close_abandoned(broker: Broker, *, dry_run: bool = False) -> list[str]:
    """Close open rows of schedules that are gone or switched off and that no member stands for any more."""
    runs = ledger.load_abandoned()
    views = broker.views([(chain.member_of(run.schedule_id), run.queue) for run in runs])
    lost = [run for run, view in zip(runs, views, strict=True) if view.score_ms is None]
    if not dry_run:
        ledger.close_abandoned(lost)
    return [f"{run}: closed, its schedule is gone or switched off" for run in lost]
