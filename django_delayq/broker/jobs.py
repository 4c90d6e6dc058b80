"""One typed method per script on jobs, and their plain reads. Knows no payload's meaning, and takes no decision."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any

from . import keys
from .broker import SCRIPT_PART, Broker, claim_arguments
from .connection import translated
from .exchange import Argument
from .keys import Shard, member_shard
from .prefix import SCAN_PAGE
from .scripts import Call, head_ms, listed, number, settled, text, wire
from .types import Claim, JobCounts, JobEntry, JobSettlement, JobStats, JobView, NewJob, Settled

#: So many of the jobs of a shard that have succeeded are listed, as long as their results stand.
DONE_MOST = 1000


def in_parts(groups: Mapping[Shard, Sequence[NewJob]]) -> list[tuple[Shard, Sequence[NewJob]]]:
    """Return the jobs of each shard in parts, none too large for one run of a script."""
    return [
        (shard, jobs[at : at + SCRIPT_PART])
        for shard, jobs in groups.items()
        for at in range(0, len(jobs), SCRIPT_PART)
    ]


class JobBroker:
    """The jobs of a prefix. Raises what `Broker` does; no method retries. Safe to share between threads."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def shard_of(self, member: str, queue: str, counts: Mapping[str, int] | None = None) -> Shard:
        """Return where a job lives, by these numbers of shards, or by those of the settings."""
        config = self.broker.config
        count = (counts and counts.get(queue)) or config.shard_count(queue)
        return Shard(queue, 0) if count == 1 else member_shard(member, queue, count)

    # -- whoever wants something done

    def enqueue_each(
        self, parts: Sequence[tuple[Shard, Sequence[NewJob]]], epochs: Mapping[Shard, str], *, again: bool
    ) -> list[tuple[str, list[str] | None]]:
        """Add jobs, in parts as `in_parts` makes them, in one round trip; return a reply per part.

        A reply is the shard's epoch and, per job, '' or the member that stands for it already; None instead where the
        epoch is not the one given: nothing was added. `again`: it was sent before, without a reply.
        """
        calls, channel, mode = [], self.broker._channel, "again" if again else ""
        for shard, jobs in parts:
            args: list[Argument] = [channel, str(shard), epochs.get(shard, ""), mode]
            for member, wake_ms, priority, unique, payload in jobs:
                how = f"{wake_ms} {priority} {unique}" if wake_ms or priority or unique else ""
                args += (member, payload, how)
            more = self._results(shard, [job.member for job in jobs]) if again else ()
            calls.append(Call(self._keys(shard), args, more))
        replies = self.broker.scripts.run_each("job_enqueue", calls)
        return [
            _enqueued(reply, epochs.get(shard, ""), len(jobs))
            for (shard, jobs), reply in zip(parts, replies, strict=True)
        ]

    def change(self, shard: Shard, member: str, what: str, ms: int = 0, value: str = "", *, unique: str = "") -> str:
        """Cancel, move, revive, bury... one job; return what became of it, in the words of job_change.lua."""
        args = [self.broker._channel, str(shard), member, what, ms, value, unique]
        return text(self._run("job_change", shard, args, self._results(shard, [member])))

    def view(self, shard: Shard, member: str) -> JobView:
        """Read one job. A job that ends meanwhile is seen before or after its end."""
        return self.views([(shard, member)])[0]

    def views(self, items: Sequence[tuple[Shard, str]]) -> list[JobView]:
        """Read jobs of any shards, in one round trip; see `view`."""
        commands = []
        for shard, member in items:
            names, name = self._names(shard), wire(member)
            commands += [
                methodcaller("hget", names["payload"], name),
                methodcaller("hget", names["held"], name),
                methodcaller("zscore", names["jobs"], name),
                methodcaller("zscore", names["dead"], name),
                methodcaller("get", self._result(shard, member)),  # after the payload: one of the two is there
            ]
        replies = self.broker.ask_all(commands)
        found = []
        for at in range(0, len(replies), 5):
            payload, holder, waits, died, result = replies[at : at + 5]
            times = number(waits), number(died)
            found.append(JobView(text(payload or ""), text(holder or ""), *times, text(result or "")))
        return found

    def present(self, shard: Shard, members: Sequence[str]) -> list[bool]:
        """Say which of these wait or are held. One that is being moved may seem absent."""
        names, wired = self._names(shard), [wire(member) for member in members]
        scores = self.broker.ask_all([methodcaller("zmscore", names[part], wired) for part in ("jobs", "ready")])
        return [waits is not None or turn is not None for waits, turn in zip(*scores, strict=True)]

    def labels(self, shard: Shard, member: str) -> tuple[int, str]:
        """Return the priority and the hash of the unique key of a job, as they stand beside its text."""
        names = self._names(shard)
        commands = [methodcaller("hget", names[part], wire(member)) for part in ("priority", "unique")]
        rank, unique = (text(value or "") for value in self.broker.ask_all(commands))
        known = rank.removeprefix("-").isdecimal() and len(rank) <= 4 and -100 <= int(rank) <= 100
        return int(rank) if known else 0, unique.removeprefix("k")

    def counts(self, shards: Sequence[Shard]) -> list[JobCounts]:
        """Count the jobs of each shard, in one round trip."""
        return [stats.counts for stats in self.stats(shards)]

    def stats(self, shards: Sequence[Shard]) -> list[JobStats]:
        """Count the jobs of each shard and say how late they are, in one round trip."""
        replies = self.broker.scripts.run_each("job_stats", [Call(self._keys(shard), ()) for shard in shards])
        found = []
        for now, *counts, due in replies:
            since = head_ms(due)
            late = None if since is None else max(0, int(now) - since)
            found.append(JobStats(JobCounts(*(max(0, int(value)) for value in counts)), late))
        return found

    # -- while the number of shards changes

    def waiting(self, shard: Shard) -> Iterator[list[tuple[str, int]]]:
        """Yield the jobs of a shard in pages, as (member, ms at which it comes due, 0 where it is ready).

        One that changes meanwhile may come twice, or with an old time; none is left out that is there all the time.
        """
        names = self._names(shard)
        for part in ("jobs", "ready"):
            for page in self._pages(names[part]):
                yield [(member, int(score) if part == "jobs" else 0) for member, score in page]

    def dead(self, shard: Shard) -> Iterator[list[tuple[str, int]]]:
        """Yield the dead jobs of a shard in pages, as (member, ms of its death)."""
        yield from self._pages(self._names(shard)["dead"])

    def _pages(self, key: str) -> Iterator[list[tuple[str, int]]]:
        cursor = None
        while cursor != 0:
            cursor, page = self.broker.ask("zscan", key, cursor or 0, count=SCAN_PAGE)
            yield [(text(name), number(max(0.0, score)) or 0) for name, score in page]

    def entomb(self, shard: Shard, member: str, died_ms: int, payload: str) -> None:
        """Put a dead job of another shard among those of this one."""
        names = self._names(shard)
        self.broker.ask("hset", names["payload"], wire(member), wire(payload))
        self.broker.ask("zadd", names["dead"], {wire(member): died_ms})

    def results(self, queue: str) -> Iterator[tuple[int, str]]:
        """Yield (shard, member) of the results of a queue that stand in Redis."""
        pattern = re.compile(rf"\{{{re.escape(self.broker.config.prefix)}:{re.escape(queue)}:(\d+)\}}:result:(.+)")
        match = keys.result_key(self.broker.config.prefix, Shard(queue, 0), "*").replace(":0}", ":*}")
        with translated():
            names = list(self.broker.client.scan_iter(match=match, count=SCAN_PAGE))
        for name in names:
            found = pattern.fullmatch(text(name))
            if found:
                yield int(found[1]), found[2]

    def move_result(self, member: str, old: Shard, new: Shard) -> None:
        """Give a result another shard, for as long as it would have been kept."""
        source, target = self._result(old, member), self._result(new, member)
        value, left = self.broker.ask("get", source), self.broker.ask("pttl", source)
        if value is not None and left > 0:
            self.broker.ask("set", target, value, px=left, nx=True)
            self.broker.ask("unlink", source)

    # -- what a worker does

    def claim(
        self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None
    ) -> Claim[JobEntry]:
        """Lease up to `limit` jobs whose turn it is until `lease_ms` from the server's now; see `Broker.claim`."""
        args = claim_arguments(limit, lease_ms, request, self.broker.worker, most)
        told, *payloads = self._run("job_claim", shard, args, parts=keys.JOB_CLAIM_PARTS)
        now, head, epoch, fence, *rest = listed(told)
        entries = []
        for payload, at in zip(payloads, range(0, len(rest), 3), strict=True):
            member, former, reclaims = rest[at : at + 3]
            known = former if " " in former else ""
            entries.append(JobEntry(member, text(payload or ""), former != "0", number(reclaims) or 0, known))
        return Claim(int(now), head_ms(head), epoch or None, f"{fence} {self.broker.worker}", tuple(entries))

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int, start: bool = False) -> set[str]:
        """Extend these (member, holder); return the members that are no longer ours.

        `start`: an execution of each begins after somebody else's lease had run out. It is counted; where a result
        stands already, the job is forgotten and counts as not ours.
        """
        args = [lease_ms, "start" if start else "", *chain.from_iterable(leases)]
        more = self._results(shard, [member for member, _ in leases]) if start else ()
        return {text(member) for member in self._run("job_renew", shard, args, more)}

    def settle(self, shard: Shard, settlements: Sequence[JobSettlement], *, dead_ms: int, dead_most: int) -> Settled:
        """Give jobs back; per job 1 applied, 0 no longer ours. `dead_ms`, `dead_most`: how many dead ones to keep."""
        args = [self.broker._channel, str(shard), dead_ms, dead_most, DONE_MOST, *chain.from_iterable(settlements)]
        more = self._results(shard, [item.member for item in settlements])
        return settled(self._run("job_settle", shard, args, more, parts=keys.JOB_SETTLE_PARTS))

    # -- inside

    def _names(self, shard: Shard) -> dict[str, str]:
        return keys.all_keys(self.broker.config.prefix, shard)

    def _keys(self, shard: Shard, parts: tuple[str, ...] = keys.JOB_PARTS) -> tuple[str, ...]:
        return keys.shard_keys(self.broker.config.prefix, shard, self.broker.worker, parts)

    def _result(self, shard: Shard, member: str) -> bytes:
        return wire(keys.result_key(self.broker.config.prefix, shard, member))

    def _results(self, shard: Shard, members: Sequence[str]) -> list[str]:
        stem = keys.result_key(self.broker.config.prefix, shard, "")
        return [stem + member for member in members]

    def _run(
        self,
        name: str,
        shard: Shard,
        args: list[Any],
        more: Sequence[str] = (),
        *,
        parts: tuple[str, ...] = keys.JOB_PARTS,
    ) -> Any:
        return self.broker.scripts.run(name, Call(self._keys(shard, parts), args, more))


def _enqueued(reply: Any, epoch: str, count: int) -> tuple[str, list[str] | None]:
    if isinstance(reply, int):
        return epoch, [""] * count
    standing, *names = reply
    return text(standing), [text(name) for name in names] if names or not count else None
