"""The walk through everything that the database wants in Redis, and the rebuild of flushed shards.

Note [What was mirrored goes back as it was]
After a flush nearly every schedule is as Redis knew it: its definition was mirrored, and `next_due_at`, written in the
transaction that recorded the last outcome, is its first missing point. Such entries go back straight from the columns,
without working out a point, for this is what decides how long a large index is gone. `read_settled` names the
conditions; whatever does not meet each of them (never mirrored, an open row of the ledger, parked, exhausted, undecided
since before an edit, moved by SQL) is worked out as a sweep does it. Nothing is trusted that an entry in Redis was not:
where SQL or another release of the time zones has changed when a schedule is due, the next full sweep finds it, or
whoever claims the entry.

Note [Shared]
Whoever finds a shard being rebuilt takes part, with all shards that carry the same mark. The rebuild is cut into parts:
what is due first, ranges of primary keys, runs, jobs. A part has a key of its own in Redis, set by who takes it, for as
long as a page may take; so the part of who died is free again. The key's name says of which rebuild and which shards it
is: who sees others shares nothing with them. All parts ended and the mark of each shard still there means that each
page was written after the shards were flushed for the last time, by whomever: so whoever sees that may call them built.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence

from django.db.models import Max, Min

from .. import failpoints, ledger
from ..broker import Broker, Shard
from ..chain import member_of
from .compare import compare
from .pages import PAGE, pages, parts
from .read import queues_of, read_settled
from .runs import put_back, put_runs
from .write import write_wanted

logger = logging.getLogger("django_delayq.mirror")

#: How the epoch of a shard begins that is being built.
BUILDING = "building:"
#: How long a rebuild may take between two pages before another worker may begin anew.
TTL_MS = 15_000
#: So often a rebuild that lasts tells how far it is.
TELL_SECONDS = 5.0
#: So many schedules go back before all others, those that are due first: they run while the rebuild goes on.
FIRST = 10_000
#: So many primary keys are a part, more where it would be more than so many parts.
RANGE, MOST_RANGES = 20_000, 500
#: How a part that is done is marked, and for how long: longer than any rebuild takes.
DONE, DONE_MS = "done", 3_600_000


class Build:
    """A rebuild of the shards whose epoch is absent. They are called built only if its mark stood there from the first
    page to the last: a flush in between takes the mark away.
    """

    def __init__(self, broker: Broker, shards: Sequence[Shard]) -> None:
        self.broker = broker
        self._mark = f"{BUILDING}{secrets.token_hex(4)}"
        taken = broker.swap_epochs(shards, None, self._mark, ttl_ms=TTL_MS)
        self.shards = [shard for shard, mine in zip(shards, taken, strict=True) if mine]

    def join(self, shards: Sequence[Shard]) -> None:
        """Take part in what another worker has begun of these shards, if there is any. See Note [Shared]."""
        begun = [mark for mark in self.broker.epochs(shards) if mark is not None and mark.startswith(BUILDING)]
        if begun:
            self._mark, every = begun[0], self.broker.shards()
            self.shards = [s for s, mark in zip(every, self.broker.epochs(every), strict=True) if mark == self._mark]

    def go_on(self, part: str = "") -> bool:
        """Keep the mark, and that of a part, for the next page; False where Redis was flushed again."""
        if part:
            self.broker.mark_part(*self._key(part), "taken", ttl_ms=TTL_MS)
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark, ttl_ms=TTL_MS))

    def take(self, part: str) -> bool:
        """Say whether a part is to be done here: nobody has done it or is at it."""
        return self.broker.mark_part(*self._key(part), "taken", ttl_ms=TTL_MS, absent=True)

    def end(self, part: str) -> None:
        """Note that a part is done."""
        self.broker.mark_part(*self._key(part), DONE, ttl_ms=DONE_MS)

    def is_done(self, parts: Iterable[str]) -> bool:
        """Say whether all these parts are done, by whomever."""
        return all(mark == DONE for mark in self.broker.part_marks([self._key(part) for part in parts]))

    def finish(self) -> bool:
        """Call the shards built; False where Redis was flushed meanwhile, which leaves them to be rebuilt."""
        return all(self.broker.swap_epochs(self.shards, self._mark, self._mark.removeprefix(BUILDING)))

    def _key(self, part: str) -> tuple[Shard, str]:
        of = f"{self._mark!r} {sorted(self.shards)}".encode(errors="surrogatepass")
        return min(self.shards), f"{hashlib.sha256(of).hexdigest()[:16]}:{part}"


def rebuild(broker: Broker, shards: Sequence[Shard]) -> bool:
    """Fill those of the shards that were flushed from the database, together with whoever else is at it.

    True if they are built now, False if there was nothing to do, others are still at it, or Redis was flushed again.
    Idempotent and safe beside claims: entries restart at their first missing point, see `chain.py`, Note [First missing
    point].

    Raises:
        BrokerError: Redis failed on the way; whoever finds the shards flushed begins anew.
    """
    build = Build(broker, shards)
    if not build.shards:
        build.join(shards)
    if not build.shards:
        return False
    count, began = 0, time.monotonic()
    told, work = began, _cut(broker, build.shards)
    for number, (part, filling) in enumerate(work.items(), 1):
        if build.take(part):
            for schedules in filling:
                count += schedules
                if time.monotonic() - told >= TELL_SECONDS:
                    told = time.monotonic()
                    text = "Rebuilding: %d schedules here so far, %d a second; part %d of %d."
                    logger.info(text, count, count / (told - began), number, len(work))
                if not build.go_on(part):
                    return False
            build.end(part)
    if not build.is_done(work) or not build.finish():
        return False
    logger.info("Rebuilt %s from the database: %d schedules here.", ", ".join(map(str, build.shards)), count)
    return True


def walk(broker: Broker, *, dry_run: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Compare with Redis each schedule and run that the database wants there, and mend what differs.

    Yields for each page how many schedules it had, and a line for each change. Leaves other members as they are.
    """
    for page in pages(queues_of()):
        yield len(page), compare(broker, dict(page), dry_run=dry_run)
        failpoints.reach("during_rebuild")
    for runs in ledger.open_pages(PAGE):
        yield 0, put_back(broker, runs, dry_run=dry_run)


def _cut(broker: Broker, flushed: Sequence[Shard]) -> dict[str, Iterator[int]]:
    """Return what is to be done to fill these shards; each part yields for each page how many schedules it had.

    All workers name the parts alike, also where a schedule is created meanwhile. See Note [Shared].
    """
    names = sorted({shard.queue for shard in flushed})
    keys = queues_of(queue__in=names).values_list("pk", flat=True)
    ends = queues_of().aggregate(first=Min("pk"), last=Max("pk"))
    first, last, size = ends["first"] or 0, ends["last"] or 0, RANGE
    while (last - first) // size > MOST_RANGES:
        size *= 2
    starts = range(first - first % size, last + 1, size)
    found: dict[str, Iterator[int]] = {}
    if len(starts) > 1:
        due = keys.filter(enabled=True, state__next_due_at__isnull=False).order_by("state__next_due_at")
        found["due"] = _fill(broker, flushed, parts(due[:FIRST]))
    for at in starts:
        found[f"{at}-{at + size}"] = _fill(broker, flushed, pages(keys.filter(pk__gte=at, pk__lt=at + size)))
    return found | {"runs": _fill_runs(broker, names)}


def _fill(broker: Broker, flushed: Sequence[Shard], keys: Iterable[Sequence[int]]) -> Iterator[int]:
    """Put schedules there without asking what is there. See Note [What was mirrored goes back as it was]."""
    own = set(flushed)
    for page in keys:
        settled, others = read_settled(page)
        write_wanted(broker, [item for item in settled if broker.shard_of(item.member, item.queue) in own])
        rest = {pk: queue for pk, queue in others.items() if broker.shard_of(member_of(pk), queue) in own}
        if rest:
            compare(broker, rest, flushed=True)
        yield len(page)
        failpoints.reach("during_rebuild")


def _fill_runs(broker: Broker, queues: Sequence[str]) -> Iterator[int]:
    for runs in ledger.open_pages(PAGE, queues):
        put_runs(broker, runs)
        yield 0
