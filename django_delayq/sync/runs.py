"""Brings Redis and the open rows of the ledger together: rows outside chains, and abandoned rows of chains."""

from collections.abc import Sequence
from datetime import datetime

from .. import ledger
from ..index import Broker, EntryDefinition
from ..index.keys import LONGEST_WAIT_MS, Mode, group_by
from ..ledger import chain
from ..ledger.rows import AnyRun
from ..models import Origin
from ..recurrence import to_ms

#: Modes of `upsert.lua` for a move, in turn: the row may come or go between two of them.
_MOVING: tuple[Mode, ...] = ("move", "new", "move")


def put_runs(broker: Broker, runs: Sequence[AnyRun], *, mode: Mode = "new") -> int:
    """Put rows into Redis that are not there, or with "reset" are damaged; return how many were added. A late or
    repeated put is harmless: existing entries stay, and the worker that claims a row finds out if it has ended.
    """
    shards = group_by(runs, lambda run: broker.get_shard(chain.format_run_member(run), run.queue))
    words = [broker.upsert(shard, list(map(build_definition, group)), mode=mode) for shard, group in shards.items()]
    return sum(reply.count("NEW") for reply in words)


def build_definition(run: AnyRun) -> EntryDefinition:
    """Return what Redis should hold of a row. Backfilled points wait in order of creation, not before all others."""
    point_ms = wake_ms = to_ms(run.created_at if run.origin == Origin.BACKFILL else run.due_at)
    if run.origin == Origin.MANUAL or (run.origin != Origin.BACKFILL and run.due_at <= run.created_at):
        wake_ms = 0  # starts immediately, even if the clock of the process that created it is ahead
    generation = chain.get_run_generation(run)
    return EntryDefinition(chain.format_run_member(run), generation, point_ms, wake_ms, priority=run.priority)


def move_run(broker: Broker, run: AnyRun, when: datetime) -> bool:
    """Let a waiting row come due at another time, or add it: its put may be late. Return False if a worker has it."""
    at_ms, word = to_ms(when), ""
    item = build_definition(run)._replace(point_ms=at_ms, wake_ms=at_ms)
    shard = broker.get_shard(item.member, run.queue)
    for mode in _MOVING:
        [word] = broker.upsert(shard, [item], mode=mode)
        if word in ("MOVED", "NEW", "LEASED"):
            break
    return word != "LEASED"


def forget_run(broker: Broker, run: AnyRun) -> None:
    """Remove a row from Redis that must not start; one that was retried in the meantime stays."""
    member, generation = chain.format_run_member(run), chain.get_run_generation(run)
    broker.remove(broker.get_shard(member, run.queue), [(member, generation, "")], gone=True)


def put_back(broker: Broker, runs: Sequence[AnyRun], *, dry_run: bool = False) -> list[str]:
    """Restore open runs that are missing in Redis, and repair damaged ones; return one line for each."""
    now_ms = broker.read_now_ms()
    views = broker.read_views([(chain.format_run_member(run), run.queue) for run in runs])
    missing, damaged = [], []
    for run, view in zip(runs, views, strict=True):
        latest_ms = max(now_ms, to_ms(run.due_at)) + LONGEST_WAIT_MS
        if view.score_ms is None or (view.generation != chain.get_run_generation(run) and not view.leased):
            missing.append(run)
        elif view.point_ms is None or view.generation is None or view.score_ms > latest_ms:
            damaged.append(run)
    if not dry_run:
        put_runs(broker, missing)
        put_runs(broker, damaged, mode="reset")
    lines = [f"{run.title} {run.pk}: put back" for run in missing]
    return lines + [f"{run.title} {run.pk}: repaired, a part of its entry was damaged" for run in damaged]


def close_abandoned(broker: Broker, *, dry_run: bool = False) -> list[str]:
    """Close open rows of chains whose schedule was deleted or disabled and has no member; return one line for each."""
    runs = ledger.load_abandoned()
    views = broker.read_views([(chain.format_member(run.schedule_id or 0), run.queue) for run in runs])
    lost = [run for run, view in zip(runs, views, strict=True) if view.score_ms is None]
    if not dry_run:
        ledger.close_abandoned(lost)
    return [f"{run}: closed, its schedule is gone or switched off" for run in lost]
