"""One typed method per script, and the few plain reads and writes. No decision is taken here."""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any

from ..grouping import grouped
from . import keys
from .cluster import node_of
from .keys import Shard
from .prefix import SCAN_PAGE, Prefix
from .scripts import Call, claimed_ms, clock_ms, head_ms, instant_ms, listed, number, settled, text, wire
from .types import Claim, Definition, Entry, EntryView, Mode, Settled, Settlement, Stats, Trial

#: Items that one run of a script of the mirror takes: some 0.5 ms of Redis.
SCRIPT_PART = 100
#: A lost reply is asked for again within seconds; the journal must outlive the lease by more than that.
JOURNAL_GRACE_MS = 60_000
#: The parts of a shard that have its members, each in one of them.
SCORED = ("due", "ready", "jobs", "jobs-ready")
#: The largest number that Lua, a score and JSON hold exactly. A removal with it takes out a member of any generation.
EXACT = 2**53 - 1
#: Of these, those that have the ends of leases: what is leased waits for no turn.
LEASED = ("due", "jobs")


class Broker(Prefix):
    """Redis as this package uses it. Safe to share between threads.

    Every method raises `BrokerUnavailable` where trying again later is right, `DamagedKeys` where a key has a foreign
    type, `BrokerError` for any other error reply. No method retries.
    """

    def shard_of(self, member: str, queue: str) -> Shard:
        """Return where a member of a queue lives under the configured number of shards."""
        return keys.member_shard(member, queue, self.config.shard_count(queue))

    def shards(self, queues: Iterable[str] | None = None) -> list[Shard]:
        """Return every shard of these queues, by default of all."""
        names = self.config.queues if queues is None else queues
        return [Shard(queue, number) for queue in names for number in range(self.config.shard_count(queue))]

    def _keys(self, shard: Shard) -> dict[str, str]:
        return keys.all_keys(self.config.prefix, shard)

    def _run(self, name: str, shard: Shard, args: list[Any], *, worker: str = "") -> Any:
        names = keys.shard_keys(self.config.prefix, shard, worker or self.worker)
        return self.scripts.run(name, Call(names, args))

    def _run_each(self, name: str, calls: Sequence[tuple[Shard, list[Any]]]) -> list[Any]:
        made = [Call(keys.shard_keys(self.config.prefix, shard, self.worker), args) for shard, args in calls]
        return self.scripts.run_each(name, made)

    def _run_in_parts(self, name: str, shard: Shard, head: list[Any], items: Sequence[Sequence[Any]]) -> list[Any]:
        """Run a script on any number of items in one round trip: none blocks Redis for longer than a part takes.

        Return the reply to each part.
        """
        starts = range(0, len(items), SCRIPT_PART)
        calls = [(shard, [*head, *chain.from_iterable(items[at : at + SCRIPT_PART])]) for at in starts]
        return self._run_each(name, calls)

    # -- what a worker does

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim:
        """Lease up to `limit` due members until `lease_ms` from the server's now, in their turn: see Note [Lanes].

        `most`: so many leases may stand in the shard; None for any number.

        Repeated with the same `request` after a lost reply it returns those of that claim that are still held, with
        their leases renewed. A lower number than the last one gets nothing. One open claim per process and shard.
        """
        journal_ms = 4 * lease_ms + JOURNAL_GRACE_MS
        args = [limit, lease_ms, request, journal_ms, self.worker, "" if most is None else most]
        now, head, epoch, fence, damaged, *rest = listed(self._run("claim", shard, args))
        entries = []
        for at in range(0, len(rest), 5):
            member, point, generation, attempts, lapsed = rest[at : at + 5]
            parts = instant_ms(point), number(generation), number(attempts) or 0, lapsed != "0", claimed_ms(lapsed)
            entries.append(Entry(member, *parts))
        return Claim(int(now), head_ms(head), epoch or None, f"{fence} {self.worker}", tuple(entries), bool(damaged))

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]:
        """Extend these leases, (member, holder) each; return the members that are no longer ours."""
        return {text(member) for member in self._run("renew", shard, [lease_ms, *chain.from_iterable(leases)])}

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        """Give members back; per member 1 applied, 2 edited meanwhile, 0 no longer ours."""
        return settled(self._run("settle", shard, [self._channel, str(shard), *chain.from_iterable(settlements)]))

    # -- what the mirror does

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, mode: Mode = "") -> list[str]:
        """Mirror schedules or rows, each member once; return what became of each, in the words of upsert.lua.

        Modes: see there. What is leased stays as it is.
        """
        head = [self._channel, str(shard), mode]
        return [
            word for reply in self._run_in_parts("upsert", shard, head, definitions) for word in text(reply).split()
        ]

    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        """Mirror the end of (member, generation, expected); return what became of each, in the words of remove.lua.

        `gone`: deleted or moved away, so that nobody has a due point to record any more.
        """
        replies = self._run_in_parts("remove", shard, ["gone" if gone else ""], members)
        return [text(reply) for part in replies for reply in part]

    def swap_epochs(self, shards: Sequence[Shard], expected: str | None, new: str, *, ttl_ms: int = 0) -> list[bool]:
        """Set the epochs that are `expected` (None: absent), in one round trip; say which were. `ttl_ms` 0: no end."""
        args = [expected or "", new, ttl_ms]
        return [bool(reply) for reply in self._run_each("epoch", [(shard, args) for shard in shards])]

    def epochs(self, shards: Sequence[Shard]) -> list[str | None]:
        """Return the epoch of each shard, None where it is absent, in one round trip."""
        values = self.ask_all([methodcaller("get", self._keys(shard)["epoch"]) for shard in shards])
        return [text(value) or None if value is not None else None for value in values]

    def take_over(self, shards: Sequence[Shard]) -> None:
        """Give each shard that has one another epoch, so that every worker looks again whose index this is; then void
        all leases, so that no holder of before moves a member.
        """
        for shard in shards:
            self.ask("set", self._keys(shard)["epoch"], secrets.token_hex(4), xx=True)
        for shard in shards:
            self.ask("delete", self._keys(shard)["lease"])

    def drop(self, shards: Sequence[Shard]) -> None:
        """Delete all keys of these shards, but for what expires: the journals of workers."""
        for shard in shards:
            names = self._keys(shard)
            self.ask("unlink", *(name for part, name in names.items() if part != keys.OF_A_WORKER))

    def mend(self, shard: Shard) -> int:
        """Give the members of a shard scores again where they are lost or impossible; return how many were mended.

        Works from what is left in Redis: a point that is wrong is judged when it is claimed.
        """
        head = [self._channel, str(shard), int(self.config.lease_seconds * 1000)]
        pages = self.scan(shard)
        return sum(sum(self._run_in_parts("mend", shard, head, [(name,) for name in page])) for page in pages)

    def count_leases(self, shards: Sequence[Shard]) -> int:
        """Count the leases that have not ended, whether their holders live or not."""
        now_ms = self.now_ms()
        parts, ends = [self._keys(shard) for shard in shards], []
        holders = self.ask_all([methodcaller("hgetall", names["lease"]) for names in parts])
        for names, found in zip(parts, holders, strict=True):
            members = [member for member, holder in found.items() if b" " in holder]  # else it was handed back
            ends += [methodcaller("zmscore", names[part], members) for part in LEASED if members]
        scores = self.ask_all(ends)
        return sum(score is not None and score > now_ms for page in scores for score in page)

    # -- before anything else

    def probe(self, shard: Shard) -> Trial:
        """Try on a key that is gone afterwards what the scripts need, with `EXACT`; sends a hint that says nothing."""
        reply = self._run("probe", shard, [self._channel, EXACT], worker="probe")
        seconds, micros, number, score, member, value, *refused = map(text, reply)
        clock_us = int(seconds) * 1_000_000 + int(micros)
        return Trial(clock_us, number, score, member, value, tuple(refused))

    # -- plain reads

    def clocks_ms(self, shards: Sequence[Shard]) -> list[int]:
        """Return the clock of each shard's server: one for all, or in a cluster that of its node."""
        found: dict[str, int] = {}
        clocks = []
        for shard in shards:
            node = node_of(self.client, self._keys(shard)["due"])
            name = str(node)
            if name not in found:
                found[name] = clock_ms(self.ask("time", **node))
            clocks.append(found[name])
        return clocks

    def stats(self, shards: Sequence[Shard]) -> list[Stats]:
        """Count the members of each shard, in one round trip; the shards at slightly different instants."""
        found = []
        for reply in self._run_each("stats", [(shard, []) for shard in shards]):
            now, members, due, leased, head, epoch, *counts = reply
            numbers = int(members), int(due), int(leased), number(head), text(epoch) or None
            found.append(Stats(int(now), *numbers, *map(int, counts)))
        return found

    def heads(self, shards: Sequence[Shard]) -> list[int | None]:
        """Return when each shard needs attention, in ms, None where it is empty, by plain reads in one round trip."""
        asked: list[Any] = []
        for shard in shards:
            names = self._keys(shard)
            asked += [methodcaller("zrange", names[part], 0, 0, withscores=True) for part in ("due", "jobs")]
            asked.append(methodcaller("exists", names["ready"], names["jobs-ready"]))
        replies = iter(self.ask_all(asked))
        found = []
        for points, jobs, ready in zip(replies, replies, replies, strict=True):
            scores = [head_ms(head[0][1]) for head in (points, jobs) if head]
            found.append(0 if ready else min((score for score in scores if score is not None), default=None))
        return found

    def views(self, members: Sequence[tuple[str, str]]) -> list[EntryView]:
        """Return what Redis holds of each (member, queue), in one round trip for all of them."""
        by_shard = grouped(range(len(members)), lambda index: self.shard_of(*members[index]))
        commands = []
        for shard, indexes in by_shard.items():
            names, parts = [wire(members[index][0]) for index in indexes], self._keys(shard)
            commands += [methodcaller("zmscore", parts[part], names) for part in SCORED]
            commands += [methodcaller("hmget", parts[part], names) for part in ("point", "gen", "lease", "attempts")]
        replies = iter(self.ask_all(commands))
        found: dict[int, EntryView] = {}
        for indexes in by_shard.values():
            columns = [next(replies) for _ in range(len(SCORED) + 4)]
            for index, *scores, point, generation, lease, attempts in zip(indexes, *columns, strict=True):
                found[index] = _view(_score(*scores), point, generation, lease is not None, attempts is not None)
        return [found[index] for index in range(len(members))]

    def scan(self, shard: Shard) -> Iterator[set[str]]:
        """Yield the names of all members of a shard in pages: those with a score, then what is left of others."""
        parts = self._keys(shard)
        for part in (*SCORED, "point", "gen", "lease", "attempts"):
            read, cursor = "zscan" if part in SCORED else "hscan", None
            while cursor != 0:
                cursor, page = self.ask(read, parts[part], cursor or 0, count=SCAN_PAGE)
                names = [item[0] if isinstance(item, tuple) else item for item in page]
                found = {text(name) for name in names}
                if names and part not in SCORED:
                    scores = self.ask_all([methodcaller("zmscore", parts[scored], names) for scored in SCORED])
                    found -= {text(name) for name, *own in zip(names, *scores, strict=True) if own != [None] * 4}
                if found:
                    yield found


def _score(points: Any, ready: Any, jobs: Any, jobs_ready: Any) -> Any:
    """Return a member's score, 0 where it waits for its turn."""
    if points is not None or jobs is not None:
        return jobs if points is None else points
    return None if ready is None and jobs_ready is None else 0


def _view(score: Any, point: Any, generation: Any, leased: bool, retrying: bool) -> EntryView:
    read = instant_ms(point), number(score), number(generation)
    garbage = any(new is None and old is not None for new, old in zip(read, (point, score, generation), strict=True))
    return EntryView(*read, leased, retrying, garbage)
