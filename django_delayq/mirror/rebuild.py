"""The rebuild of flushed shards from the database.

Note [What was mirrored goes back as it was]
After a flush nearly every schedule is as Redis knew it: its definition was mirrored, and `next_due_at`, written in the
transaction that recorded the last outcome, is its first missing point. Such entries go back straight from the columns,
without working out a point, for this is what decides how long a large index is gone. `load_settled` names the
conditions; whatever does not meet each of them (never mirrored, an open row of the ledger, parked, exhausted, owed from
before an edit, moved by SQL) is worked out as a sweep does it. Nothing is trusted that an entry in Redis was not: where
SQL or another release of the time zones has changed when a schedule is due, the next full sweep finds it, or whoever
claims the entry.
"""

import logging
from collections.abc import Sequence

from .. import failpoints
from ..broker import Broker, Shard
from ..chain import member_of
from . import rows
from .build import Build
from .compare import compare
from .durable import put_jobs, waiting_pages
from .runs import open_pages, put_back
from .write import PAGE, write_settled

logger = logging.getLogger("django_delayq.mirror")


def rebuild(broker: Broker, shards: Sequence[Shard]) -> bool:
    """Fill flushed shards from the database; True if done, False if another worker is at it or Redis was flushed again.

    The part of the full sweep that brings entries and runs back, for these shards. Idempotent and safe beside claims:
    entries restart at their first missing point, see Note [First missing point].
    """
    build = Build(broker, shards)
    if not build.shards:
        return False
    queues = sorted({shard.queue for shard in build.shards})
    whole = set(build.shards) == set(broker.shards(queues))
    count = 0
    for homes in rows.pages(PAGE, queues):
        if not whole:
            homes = {pk: queue for pk, queue in homes.items() if broker.shard_of(member_of(pk), queue) in build.shards}
        count += _put_entries(broker, homes)
        failpoints.reach("during_rebuild")
        if not build.go_on():
            return False
    for runs in open_pages(queues):
        put_back(broker, runs)
        if not build.go_on():
            return False
    for jobs in waiting_pages(queues):
        here = [job for job in jobs if whole or broker.shard_of(job.member, job.queue) in build.shards]
        put_jobs(broker, [job.as_new() for job in here])
        if not build.go_on():
            return False
    done = build.finish()
    logger.info("Rebuilt %s from the database: %d schedules.", ", ".join(map(str, build.shards)), count)
    return done


def _put_entries(broker: Broker, homes: dict[int, str]) -> int:
    """Bring back the entries of a page; return how many. See Note [What was mirrored goes back as it was]."""
    settled = [row for row in rows.load_settled(rows.keys_of(homes)) if homes.get(row.pk) == row.queue]
    write_settled(broker, settled)
    done = {row.pk for row in settled}
    rest = {pk: queue for pk, queue in homes.items() if pk not in done}
    return len(settled) + (len(compare(broker, rest, flushed=True)) if rest else 0)
