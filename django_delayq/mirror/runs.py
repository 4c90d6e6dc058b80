"""Brings Redis and the open rows of the ledger together: runs apart from their chains, and chains that nobody ends."""

from collections.abc import Sequence

from .. import chain, ledger
from ..broker import Broker, Definition, Index
from ..grouping import grouped
from ..models import Origin
from ..rows import AnyRun
from ..timing import to_ms
from .compare import LONGEST_WAIT_MS


def enqueue_runs(broker: Index, runs: Sequence[AnyRun]) -> int:
    """Put run members that are not there into Redis, each shard's in one round trip; return how many were added.

    A backfilled point waits in line from its order on: by its due point it would push before everything that is due.
    """
    now_ms = broker.now_ms() if any(run.origin != Origin.DUE for run in runs) else 0

    def member(run: AnyRun) -> tuple[str, int, int]:
        due_ms = to_ms(run.due_at)
        wake_ms = to_ms(run.created_at) if run.origin == Origin.BACKFILL else due_ms
        if run.origin != Origin.DUE:  # an order starts at once, also where its sender's clock is ahead
            wake_ms = min(wake_ms, now_ms)
        return chain.run_member_of(run.pk), due_ms, wake_ms

    shards = grouped(runs, lambda run: broker.shard_of(chain.run_member_of(run.pk), run.queue))
    return sum(sum(broker.enqueue(shard, [member(run) for run in group])) for shard, group in shards.items())


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
