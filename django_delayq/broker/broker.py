"""One typed method per script, and the few plain reads and writes. No decision is taken here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import conf
from . import keys, scripts
from .connection import connect, translated
from .keys import Place
from .types import Claim, Definition, Entry, EntryView, Lease, Settlement, Stats

SCAN_PAGE = 1000
#: The end of the year 9999 in ms.
LAST_MS = 253_402_300_799_999
#: A lost reply is asked for again within seconds; the journal must outlive the lease by more than that.
JOURNAL_GRACE_MS = 60_000


def text(value: Any) -> str:
    """Accept bytes and str replies. Garbage bytes become surrogates, never an error, and `wire` turns them back."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def wire(member: str) -> bytes:
    """Return a member as it stands in Redis."""
    return member.encode("utf-8", "surrogateescape")


def number(value: Any) -> int | None:
    """Return a whole number from 0 to 2^53, or None for nothing and for garbage: what Lua's `whole` accepts."""
    if value is None:
        return None
    try:
        found = int(float(value))
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**53 else None


def instant_ms(value: Any) -> int | None:
    """Return ms since the epoch, or None for nothing, for garbage and for what lies beyond the calendar."""
    found = number(value)
    return found if found is not None and found <= LAST_MS else None


class Broker:
    """Redis as this package uses it. Safe to share between threads.

    Every method raises `BrokerUnavailable` where trying again later is right, `DamagedKeys` where a key has a foreign
    type, `BrokerError` for any other error reply. No method retries.
    """

    def __init__(self, *, timeout_seconds: float, worker: str = "-", client: Any = None) -> None:
        """Connect lazily, by the alias of the settings. `worker` names this process' claim journal."""
        self.config = conf.get_config()
        self.worker = worker
        self.client: Any = client if client is not None else connect(timeout_seconds=timeout_seconds)
        self._channel = keys.wake_channel(self.config.prefix)

    def close(self) -> None:
        """Close the connections."""
        self.client.connection_pool.disconnect()

    def place_of(self, member: str, queue: str) -> Place:
        """Return where a member of a queue lives under the configured number of shards."""
        return keys.member_place(member, queue, self.config.shards_of(queue))

    def places(self, queues: Iterable[str] | None = None) -> list[Place]:
        """Return every shard of these queues, by default of all."""
        names = self.config.queues if queues is None else queues
        return [Place(queue, shard) for queue in names for shard in range(self.config.shards_of(queue))]

    def _run(self, name: str, place: Place, args: list[Any]) -> Any:
        with translated():
            return scripts.run(self.client, name, keys.shard_keys(self.config.prefix, place, self.worker), args)

    # -- what a worker does

    def claim(self, place: Place, *, limit: int, lease_ms: int, request: int) -> Claim:
        """Lease up to `limit` due members until `lease_ms` from the server's now.

        Repeated with the same `request` after a lost reply it returns those of that claim that are still held, with
        their leases renewed. A lower number than the last one gets nothing. One open claim per process and shard.
        """
        reply = self._run("claim", place, [limit, lease_ms, request, 4 * lease_ms + JOURNAL_GRACE_MS])
        now, head, epoch, fence, *rest = reply
        entries = []
        for at in range(0, len(rest), 6):
            member, point, generation, attempts, lapsed, payload = rest[at : at + 6]
            entries.append(
                Entry(
                    text(member),
                    instant_ms(point),
                    number(generation),
                    number(attempts) or 0,
                    text(lapsed) == "1",
                    text(payload),
                )
            )
        return Claim(int(now), number(head), text(epoch) or None, text(fence), tuple(entries))

    def renew(self, place: Place, leases: Sequence[Lease], *, lease_ms: int) -> set[str]:
        """Extend these leases; return the members that are no longer ours."""
        args: list[Any] = [lease_ms]
        for lease in leases:
            args += (wire(lease.member), lease.fence)
        return {text(member) for member in self._run("renew", place, args)}

    def settle(self, place: Place, settlements: Sequence[Settlement]) -> list[int]:
        """Give members back with their next point; per member 1 applied, 2 edited meanwhile, 0 no longer ours."""
        args: list[Any] = [self._channel, str(place)]
        for item in settlements:
            point = "" if item.point_ms is None else item.point_ms
            args += (wire(item.member), item.fence, item.generation, point, item.wake_ms)
        return [int(reply) for reply in self._run("settle", place, args)]

    def release(self, place: Place, leases: Sequence[Lease]) -> list[int]:
        """Hand back what did not start, each after its delay; per member 1 released, 0 no longer ours."""
        return self._hand_back("release", place, leases)

    def retry(self, place: Place, leases: Sequence[Lease]) -> list[int]:
        """Hand back what failed and shall be tried again, each after its delay; an attempt is counted."""
        return self._hand_back("retry", place, leases)

    def _hand_back(self, name: str, place: Place, leases: Sequence[Lease]) -> list[int]:
        args: list[Any] = [self._channel, str(place)]
        for lease in leases:
            args += (wire(lease.member), lease.fence, lease.delay_ms)
        return [int(reply) for reply in self._run(name, place, args)]

    # -- what the mirror does

    def upsert(self, place: Place, definitions: Sequence[Definition], *, sweep: bool = False) -> list[str]:
        """Mirror definitions; return what became of each, in the words of upsert.lua."""
        args: list[Any] = [self._channel, str(place), "sweep" if sweep else ""]
        for definition in definitions:
            args += (wire(definition.member), *definition[1:])
        return [text(reply) for reply in self._run("upsert", place, args)]

    def remove(self, place: Place, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        """Mirror the end of (member, generation, expected); return what became of each, in the words of remove.lua.

        `gone`: deleted or moved away, so that nobody has a due point to record any more.
        """
        args: list[Any] = ["gone" if gone else ""]
        for member, generation, expected in members:
            args += (wire(member), generation, expected)
        return [text(reply) for reply in self._run("remove", place, args)]

    def enqueue(self, place: Place, members: Sequence[tuple[str, int, int, str]]) -> list[bool]:
        """Add (member, point_ms, wake_ms, payload) that are not there yet; say per member whether it was added."""
        args: list[Any] = [self._channel, str(place)]
        for item in members:
            args += item
        return [bool(reply) for reply in self._run("enqueue", place, args)]

    def swap_epoch(self, place: Place, expected: str | None, new: str, *, ttl_ms: int = 0) -> bool:
        """Set the epoch if it still is `expected` (None = absent); say whether it was. `ttl_ms` 0 = for ever."""
        return bool(self._run("epoch", place, [expected or "", new, ttl_ms]))

    def epochs(self, places: Sequence[Place]) -> list[str | None]:
        """Return the epoch of each place, None where it is absent, in one round trip."""
        with translated():
            pipeline = self.client.pipeline(transaction=False)
            for place in places:
                pipeline.get(keys.shard_keys(self.config.prefix, place)[8])
            return [text(value) or None if value is not None else None for value in pipeline.execute()]

    # -- plain reads

    def stats(self, place: Place) -> Stats:
        """Count a shard's members."""
        now, members, due, leased, head, epoch = self._run("stats", place, [])
        return Stats(int(now), int(members), int(due), int(leased), number(head), text(epoch) or None)

    def peek(self, places: Sequence[Place]) -> list[tuple[int | None, str | None]]:
        """Return (head_ms, epoch) of each place by plain reads in one round trip: what an idle worker asks."""
        with translated():
            pipeline = self.client.pipeline(transaction=False)
            for place in places:
                names = keys.shard_keys(self.config.prefix, place)
                pipeline.zrange(names[0], 0, 0, withscores=True)
                pipeline.get(names[8])
            replies = pipeline.execute()
        found = []
        for head, epoch in zip(replies[::2], replies[1::2], strict=True):
            found.append((number(head[0][1]) if head else None, text(epoch) or None if epoch is not None else None))
        return found

    def views(self, members: Sequence[tuple[str, str]]) -> list[EntryView]:
        """Return what Redis holds of each (member, queue), in one round trip for all of them."""
        by_place: dict[Place, list[int]] = {}
        for index, (member, queue) in enumerate(members):
            by_place.setdefault(self.place_of(member, queue), []).append(index)
        with translated():
            pipeline = self.client.pipeline(transaction=False)
            for place, indexes in by_place.items():
                names = [wire(members[index][0]) for index in indexes]
                due, point, generation, lease = keys.shard_keys(self.config.prefix, place)[:4]
                pipeline.zmscore(due, names)
                pipeline.hmget(point, names)
                pipeline.hmget(generation, names)
                pipeline.hmget(lease, names)
            replies = iter(pipeline.execute() if by_place else [])
        found: dict[int, EntryView] = {}
        for indexes in by_place.values():
            columns = (next(replies), next(replies), next(replies), next(replies))
            for index, score, point, generation, lease in zip(indexes, *columns, strict=True):
                found[index] = EntryView(instant_ms(point), number(score), number(generation), lease is not None)
        return [found[index] for index in range(len(members))]

    def scan(self, place: Place) -> Iterator[set[str]]:
        """Yield the names of all members of a shard in pages, from every structure; a name may come twice."""
        names = keys.shard_keys(self.config.prefix, place)
        for key, kind in ((names[0], "zscan"), (names[1], "hscan"), (names[2], "hscan")):
            cursor = 0
            while True:
                with translated():
                    cursor, page = getattr(self.client, kind)(key, cursor, count=SCAN_PAGE)
                yield {text(item[0]) if isinstance(item, tuple) else text(item) for item in page}
                if cursor == 0:
                    break

    def now_ms(self) -> int:
        """Return the server's clock."""
        with translated():
            seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def info(self, section: str) -> Mapping[str, Any]:
        """Return a section of INFO."""
        with translated():
            return dict(self.client.info(section))

    # -- what concerns the whole prefix

    def layout(self) -> str | None:
        """Return the stored layout, as written by `claim_layout`."""
        with translated():
            value = self.client.get(keys.layout_key(self.config.prefix))
        return None if value is None else text(value)

    def claim_layout(self, value: str) -> str:
        """Store the layout if there is none; return the one that stands."""
        with translated():
            self.client.set(keys.layout_key(self.config.prefix), value, nx=True)
        standing = self.layout()
        return value if standing is None else standing

    def write_layout(self, value: str) -> None:
        """Replace the layout."""
        with translated():
            self.client.set(keys.layout_key(self.config.prefix), value)

    def heartbeat(self, now_ms: int, details: str | None = None) -> None:
        """Say that this worker lives; `details` only where they changed."""
        prefix = self.config.prefix
        with translated():
            if details is not None:
                self.client.hset(keys.worker_details_key(prefix), self.worker, details)
            self.client.zadd(keys.workers_key(prefix), {self.worker: now_ms})

    def farewell(self) -> None:
        """Take this worker off the list."""
        prefix = self.config.prefix
        with translated():
            self.client.zrem(keys.workers_key(prefix), self.worker)
            self.client.hdel(keys.worker_details_key(prefix), self.worker)

    def workers(self) -> dict[str, tuple[int, str]]:
        """Return worker -> (ms of its last heartbeat, its details)."""
        prefix = self.config.prefix
        with translated():
            beats = self.client.zrange(keys.workers_key(prefix), 0, -1, withscores=True)
            details = {text(k): text(v) for k, v in self.client.hgetall(keys.worker_details_key(prefix)).items()}
        return {text(name): (int(score), details.get(text(name), "")) for name, score in beats}

    def hints(self, *, timeout_seconds: float) -> Iterator[tuple[Place, int] | None]:
        """Subscribe and yield (place, head_ms) hints; None after every `timeout_seconds` without one."""
        with translated():
            pubsub = self.client.pubsub(ignore_subscribe_messages=True)
        try:
            with translated():
                pubsub.subscribe(self._channel)
            while True:
                with translated():
                    message = pubsub.get_message(timeout=timeout_seconds)
                yield _parse_hint(text(message["data"])) if message else None
        finally:
            pubsub.close()

    def repair(self, place: Place) -> list[str]:
        """Delete the keys of a foreign type of this shard and of the prefix; return their names.

        With the shard's keys the epoch goes too, so that a rebuild follows.
        """
        names = dict(zip(keys.PARTS, keys.shard_keys(self.config.prefix, place, self.worker), strict=True))
        wanted = {name: keys.TYPES[part] for part, name in names.items()}
        with translated():
            bad = [name for name, kind in wanted.items() if text(self.client.type(name)) not in ("none", kind)]
            if bad:
                self.client.delete(*bad, names["epoch"])
            for name, kind in keys.prefix_keys(self.config.prefix).items():
                if text(self.client.type(name)) not in ("none", kind):
                    self.client.delete(name)
                    bad.append(name)
        return bad

    def purge(self) -> int:
        """Delete every key under the prefix; return how many there were."""
        return sum(self._delete(page) for page in self._own_keys())

    def count_keys(self) -> int:
        """Count the keys under the prefix."""
        return sum(len(page) for page in self._own_keys())

    def _own_keys(self) -> Iterator[list[Any]]:
        for pattern in keys.patterns(self.config.prefix):
            with translated():
                found = list(self.client.scan_iter(match=pattern, count=SCAN_PAGE))
            yield [name for name in found if keys.is_own(self.config.prefix, text(name))]

    def _delete(self, names: list[Any]) -> int:
        with translated():
            return sum(int(self.client.unlink(name)) for name in names)


def _parse_hint(message: str) -> tuple[Place, int] | None:
    head, _, score = message.partition(" ")
    queue, _, shard = head.rpartition(":")
    when = number(score)
    return (Place(queue, int(shard)), when) if queue and shard.isdigit() and when is not None else None
