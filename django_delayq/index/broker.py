"""One typed method per Lua script, and plain reads and writes. Makes no decisions."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import methodcaller
from threading import Lock
from typing import Any, Protocol
from zlib import crc32

from .. import conf
from ..conf import Config
from . import keys
from .cluster import close, node_of, primaries
from .connection import connector, translated
from .engine import info_of, run_ids
from .keys import LONGEST_WAIT_MS, Claim, Definition, EntryView, Mode, Settled, Settlement, Shard, Stats, Trial, grouped
from .scripts import Call, Scripts, clock_ms, head_ms, instant_ms, number, packed, read_claim, read_settled, text, wire

SCAN_PAGE = 1000
#: Maximum seconds to wait for the confirmation of a subscription.
CONFIRM_SECONDS = 2.0
#: Duration of the upkeep lease.
UPKEEP_MS = 15_000
#: Maximum items per run of a mirror script: about 0.5 ms of Redis.
SCRIPT_PART = 100
#: Added to the lifetime of a claim journal (four leases). Claims with a lost reply are repeated within seconds.
JOURNAL_GRACE_MS = 60_000
#: Parts of a shard that hold its members; each member is in exactly one.
SCORED = ("due", "ready", "jobs", "jobs-ready")
#: Those that hold the ends of leases. A leased member is never among the ready ones.
LEASED = ("due", "jobs")
#: The commands of the scripts, in the order in which `probe` tries them. DEL is first because it needs no memory. SET
#: with PX is late, so that the key expires even if DEL is refused.
TRIED = (
    "TIME", "DEL KEY", "ZADD KEY NX N m", "ZMSCORE KEY m", "ZRANGE KEY -inf N BYSCORE LIMIT 0 1", "ZCOUNT KEY -inf N",
    "ZCARD KEY", "ZREM KEY m", "HSET KEY m N", "HMGET KEY m", "HGET KEY m", "HGETALL KEY", "HEXISTS KEY m", "HLEN KEY",
    "HDEL KEY m", "SET KEY N PX 1", "GET KEY", "PTTL KEY", "EXISTS KEY", "DEL KEY", "PUBLISH CHANNEL -",
)  # fmt: skip
#: Largest integer that Lua, a sorted set's score and JSON hold exactly. As a generation, it removes any member.
EXACT = 2**53 - 1


class Broker:
    """Redis as this package uses it. Thread-safe.

    Every method raises `BrokerUnavailable` if trying again later may succeed, `DamagedKeys` if a key has a foreign
    type, and `BrokerError` for any other error reply. No method retries.
    """

    def __init__(self, *, timeout_seconds: float, worker: str = "-", client: Any = None) -> None:
        """Connect lazily, to the alias of the settings. `worker` names the claim journal of this process."""
        self.config = conf.get_config()
        self.worker = worker
        self._shard_count = cache(self.config.shard_count)
        self._connect = connector(timeout_seconds=timeout_seconds) if client is None else lambda: client
        self._connected: tuple[Any, Scripts] | None = None
        self._connecting = Lock()
        self._channel = keys.wake_channel(self.config.prefix)

    @property
    def client(self) -> Any:
        """The client, created on first use; a cluster's client then connects and may raise `BrokerUnavailable`."""
        return (self._connected or self._connect_now())[0]

    @property
    def scripts(self) -> Scripts:
        """The script runner of that client; raises what `client` does."""
        return (self._connected or self._connect_now())[1]

    def _connect_now(self) -> tuple[Any, Scripts]:
        with self._connecting:
            if self._connected is None:
                with translated():
                    client = self._connect()
                self._connected = client, Scripts(client)
            return self._connected

    def close(self) -> None:
        """Close the connections. The next command opens new ones."""
        with self._connecting:
            if self._connected is not None:
                close(self._connected[0])
                self._connected = None

    # -- plain commands

    def ask(self, command: str, *args: Any, **options: Any) -> Any:
        with translated():
            return getattr(self.client, command)(*args, **options)

    def ask_all(self, commands: Sequence[Callable[[Any], object]]) -> list[Any]:
        """Send commands, each a `methodcaller` for a pipeline, in one round trip; return their replies."""
        if not commands:
            return []
        with translated():
            pipeline = self.client.pipeline(transaction=False)
            for command in commands:
                command(pipeline)
            return list(pipeline.execute())

    def _key(self, name: str) -> str:
        return keys.prefix_key(self.config.prefix, name)

    # -- the server

    def now_ms(self) -> int:
        """Return the server's clock; in a cluster, the clock of the node that stores the heartbeats."""
        with translated():
            node = node_of(self.client, self._key("workers"))
        return clock_ms(self.ask("time", **node))

    def info(self, section: str) -> list[Mapping[str, Any]]:
        """Return one section of INFO per server (per primary of a cluster); empty where the server refuses INFO."""
        return [info_of(self, section, target) for target in primaries(self.client)]

    def run_ids(self) -> str:
        """Return the run ids of the servers, '' if unknown. They change after a restart or a failover."""
        return run_ids(self.info("server"))

    # -- layout and workers

    def _get(self, name: str) -> str | None:
        value = self.ask("get", self._key(name))
        return None if value is None else text(value)

    def layout(self) -> str | None:
        """Return the stored layout, as written by `claim_layout`."""
        return self._get("layout")

    def claim_layout(self, value: str) -> str:
        """Store the layout unless there is one; return the stored one."""
        self.ask("set", self._key("layout"), value, nx=True)
        standing = self.layout()
        return value if standing is None else standing

    def write_layout(self, value: str) -> None:
        self.ask("set", self._key("layout"), value)

    def heartbeat(self, now_ms: int, details: str) -> None:
        """Store that this worker is alive, and its details."""
        self.ask("hset", self._key("worker-details"), self.worker, details)
        self.ask("zadd", self._key("workers"), {self.worker: now_ms})

    def farewell(self) -> None:
        self.ask("zrem", self._key("workers"), self.worker)
        self.ask("hdel", self._key("worker-details"), self.worker)

    def live_workers(self, *, since_ms: int) -> int:
        """Return the number of workers whose last heartbeat is not older."""
        return int(self.ask("zcount", self._key("workers"), since_ms, "+inf"))

    def workers(self) -> dict[str, tuple[int, str]]:
        """Return {worker: (ms of its last heartbeat, 0 for garbage; its details)}."""
        beats = self.ask("zrange", self._key("workers"), 0, -1, withscores=True)
        details = {text(k): text(v) for k, v in self.ask("hgetall", self._key("worker-details")).items()}
        return {text(name): (number(score) or 0, details.get(text(name), "")) for name, score in beats}

    # -- upkeep: see `worker/upkeep.py`, Note [One lease]

    def take_upkeep(self) -> float:
        """Take the upkeep lease if it is free; return the seconds until another worker's ends, 0 if it is ours now.

        A lease that lasts longer than UPKEEP_MS, or never ends, is damaged and is overwritten.
        """
        left_ms = self.ask("pttl", self._key("upkeep"))
        if 0 < left_ms <= UPKEEP_MS:
            return float(left_ms / 1000)
        free = left_ms in (0, -2)
        taken = self.ask("set", self._key("upkeep"), self.worker, px=UPKEEP_MS, nx=free)
        return 0.0 if taken else UPKEEP_MS / 1000

    def seize_upkeep(self, holder: str = "") -> None:
        """Take or renew the upkeep lease, whichever worker holds it."""
        self.ask("set", self._key("upkeep"), holder or self.worker, px=UPKEEP_MS)

    def keep_upkeep(self) -> bool:
        """Renew the upkeep lease. False if it is free, or another worker's: that lease is extended once."""
        holder = self.ask("getex", self._key("upkeep"), px=UPKEEP_MS)
        return holder is not None and text(holder) == self.worker

    def end_upkeep(self, holder: str = "") -> None:
        """Release the upkeep lease if it is still ours."""
        if self.upkeep_holder() == (holder or self.worker):
            self.ask("delete", self._key("upkeep"))

    def upkeep_holder(self) -> str | None:
        """Return the worker that does the upkeep, None if there is none."""
        return self._get("upkeep")

    def last_sweep(self) -> str | None:
        """Return the note of the last full sweep."""
        return self._get("swept")

    def note_sweep(self, value: str | None) -> None:
        """Store the note of the last full sweep. None makes a sweep due, and ends the upkeep that is running."""
        if value is None:
            self.ask("delete", self._key("swept"))
            self.ask("delete", self._key("upkeep"))
        else:
            self.ask("set", self._key("swept"), value)

    def missed_mark(self) -> str | None:
        """Return how far the search for rows missing in Redis has come: see `sync/missed.py`."""
        return self._get("missed")

    def note_missed_mark(self, value: str) -> None:
        """Store how far that search has come."""
        self.ask("set", self._key("missed"), value)

    def last_pruning(self) -> str | None:
        """Return the note of the last pruning pass."""
        return self._get("pruned")

    def note_pruning(self, value: str) -> None:
        """Store the note of a pruning pass."""
        self.ask("set", self._key("pruned"), value)

    # -- hints, repair, purge

    def hints(self, *, timeout_seconds: float) -> Iterator[tuple[Shard, int] | None]:
        """Subscribe and yield (shard, head_ms) hints. Yields None once subscribed, and after each timeout without a
        hint.
        """
        pubsub = self.ask("pubsub")
        try:
            with translated():
                pubsub.subscribe(self._channel)
                if pubsub.get_message(timeout=CONFIRM_SECONDS) is None:
                    raise TimeoutError("It did not confirm a subscription.")
            yield None
            while True:
                with translated():
                    message = pubsub.get_message(timeout=timeout_seconds)
                yield _parse_hint(text(message["data"])) if message and message["type"] == "message" else None
        finally:
            pubsub.close()

    def repair(self, shard: Shard) -> list[str]:
        """Delete keys of a foreign type; return their names. With a key of the shard its epoch goes too: a rebuild
        follows.
        """
        names = keys.all_keys(self.config.prefix, shard, self.worker)
        bad = self._foreign({name: keys.TYPES[part] for part, name in names.items()})
        if bad:
            self.ask("delete", *bad, names["epoch"])
        others = self._foreign(keys.prefix_keys(self.config.prefix))
        for name in others:
            self.ask("delete", name)
        return bad + others

    def _foreign(self, types: Mapping[str, str]) -> list[str]:
        return [name for name, kind in types.items() if text(self.ask("type", name)) not in ("none", kind)]

    def purge(self) -> int:
        """Delete every key under the prefix; return their number."""
        return sum(int(self.ask("unlink", name)) for page in self._own_keys() for name in page)

    def _own_keys(self) -> Iterator[list[Any]]:
        for pattern in keys.patterns(self.config.prefix):
            with translated():
                found = list(self.client.scan_iter(match=pattern, count=SCAN_PAGE))
            yield [name for name in found if keys.is_own(self.config.prefix, text(name))]

    # -- shards and members

    def shard_of(self, member: str, queue: str) -> Shard:
        """Return the shard of a member, by the configured number of shards of its queue."""
        return Shard(queue, crc32(wire(member)) % self._shard_count(queue))

    def shards(self, queues: Iterable[str] | None = None) -> list[Shard]:
        """Return every shard of these queues, by default of all queues."""
        names = self.config.queues if queues is None else queues
        return [Shard(queue, number) for queue in names for number in range(self._shard_count(queue))]

    def _keys(self, shard: Shard) -> dict[str, str]:
        return keys.all_keys(self.config.prefix, shard)

    def _run(self, name: str, shard: Shard, args: Sequence[Any], *, worker: str = "") -> Any:
        names = keys.sent_keys(self.config.prefix, shard, worker or self.worker)
        _, scripts = self._connected or self._connect_now()
        return scripts.run(name, [Call(names, args)])[0]

    def _run_each(self, name: str, calls: Sequence[tuple[Shard, Sequence[Any]]]) -> list[Any]:
        made = [Call(keys.sent_keys(self.config.prefix, shard, self.worker), args) for shard, args in calls]
        return self.scripts.run(name, made)

    # -- for a worker

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim:
        """Lease up to `limit` due members for `lease_ms`, by the server's clock: see Note [Lanes].

        `most`: maximum number of leases in the shard; None for no limit.

        After a lost reply, the same `request` returns the members of that claim that are still held, with renewed
        leases. A lower number than the last one returns nothing. At most one open claim per process and shard.
        """
        journal_ms = 4 * lease_ms + JOURNAL_GRACE_MS
        args = [limit, lease_ms, request, journal_ms, self.worker, "" if most is None else most, secrets.token_hex(8)]
        return read_claim(self._run("claim", shard, args), self.worker)

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]:
        """Extend these leases, (member, holder) each; return the members that are no longer ours."""
        return {text(member) for member in self._run("renew", shard, (lease_ms, packed(leases)))}

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        """Return members; per member: 1 applied, 2 edited during the lease, 0 no longer ours."""
        return read_settled(self._run("settle", shard, (self._channel, packed(settlements))))

    # -- for the mirror

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, mode: Mode = "") -> list[str]:
        """Mirror schedules or rows, each member once; return a word for each. See upsert.lua for modes and words.

        One round trip, but several runs, none of which blocks Redis for long.
        """
        parts = [definitions[at : at + SCRIPT_PART] for at in range(0, len(definitions), SCRIPT_PART)]
        calls = [(shard, (self._channel, mode, packed(part))) for part in parts]
        return [word for reply in self._run_each("upsert", calls) for word in text(reply).split()]

    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        """Mirror the end of (member, generation, expected); return the words of upsert.lua. `gone`: no point is to be
        recorded.
        """
        ended = [Definition(member, generation, 0, 0, expected) for member, generation, expected in members]
        return self.upsert(shard, ended, mode="gone" if gone else "end")

    def swap_epochs(self, shards: Sequence[Shard], expected: str | None, new: str, *, ttl_ms: int = 0) -> list[bool]:
        """Set the epochs that are `expected` (None: absent); return which were. `ttl_ms` 0: never expires."""
        args = [expected or "", new, ttl_ms]
        return [bool(reply) for reply in self._run_each("epoch", [(shard, args) for shard in shards])]

    def epochs(self, shards: Sequence[Shard]) -> list[str | None]:
        """Return the epoch of each shard, None if absent."""
        values = self.ask_all([methodcaller("get", self._keys(shard)["epoch"]) for shard in shards])
        return [text(value) or None if value is not None else None for value in values]

    def take_over(self, shards: Sequence[Shard]) -> None:
        """Change the existing epochs, so that workers check whose index this is; then void all leases of former
        holders.
        """
        for shard in shards:
            self.ask("set", self._keys(shard)["epoch"], secrets.token_hex(4), xx=True)
        for shard in shards:
            self.ask("delete", self._keys(shard)["lease"])

    def drop(self, shards: Sequence[Shard]) -> None:
        """Delete all keys of these shards except the journals, which expire."""
        for shard in shards:
            names = self._keys(shard)
            self.ask("unlink", *(name for part, name in names.items() if part != keys.OF_A_WORKER))

    def count_leases(self, shards: Sequence[Shard]) -> int:
        """Count the leases that have not ended, whether or not their holders are alive."""
        now_ms = self.now_ms()
        parts, ends = [self._keys(shard) for shard in shards], []
        holders = self.ask_all([methodcaller("hgetall", names["lease"]) for names in parts])
        for names, found in zip(parts, holders, strict=True):
            members = [member for member, holder in found.items() if " " in text(holder)]  # '-' is not a holder
            ends += [methodcaller("zmscore", names[part], members) for part in LEASED if members]
        scores = self.ask_all(ends)
        return sum(score is not None and 0 < score - now_ms <= LONGEST_WAIT_MS for page in scores for score in page)

    # -- examination

    def probe(self, shard: Shard) -> Trial:
        """Try what the scripts need, with `EXACT`, on a temporary key. Publishes a hint that workers ignore."""
        key = keys.shard_keys(self.config.prefix, shard, "probe")[keys.PARTS.index("journal")]
        words = {"KEY": key, "N": str(EXACT), "CHANNEL": self._channel}
        commands = [[words.get(word, word) for word in line.split()] for line in TRIED]
        number, *replies = json.loads(text(self._run("probe", shard, [EXACT, json.dumps(commands)], worker="probe")))
        tried = zip(TRIED, replies, strict=True)
        refused = [f"{line.split()[0]}: {reply['err']}" for line, reply in tried if _failed(reply)]
        by_name = {line.split()[0]: reply for line, reply in zip(TRIED, replies, strict=True)}
        seconds, micros = ("0", "0") if _failed(by_name["TIME"]) else by_name["TIME"]
        score, member, value = (_first(by_name[name]) for name in ("ZMSCORE", "ZRANGE", "HMGET"))
        return Trial(int(seconds) * 1_000_000 + int(micros), number, score, member, value, tuple(refused))

    # -- plain reads

    def clocks_ms(self, shards: Sequence[Shard]) -> list[int]:
        """Return the clock of each shard's server (in a cluster, of its node)."""
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
        """Return when each shard needs attention, in ms (0: immediately, None: empty), by plain reads in one round
        trip.
        """
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
        """Return what Redis holds of each (member, queue), in one round trip."""
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
        """Yield the names of all members of a shard in pages: those with a score, then leftovers of others."""
        parts = self._keys(shard)
        for part in (*SCORED, "point", "gen", "priority", "lease", "attempts"):
            read, cursor = "zscan" if part in SCORED else "hscan", None
            while cursor != 0:
                cursor, page = self.ask(read, parts[part], cursor or 0, count=SCAN_PAGE)
                names = [item[0] if isinstance(item, tuple) else item for item in page]
                found = {text(name) for name in names}
                if names and part not in SCORED:
                    scores = self.ask_all([methodcaller("zmscore", parts[scored], names) for scored in SCORED])
                    found -= {
                        text(name)
                        for name, *own in zip(names, *scores, strict=True)
                        if any(score is not None for score in own)
                    }
                if found:
                    yield found


def _failed(reply: Any) -> bool:
    return isinstance(reply, dict) and "err" in reply


def _first(reply: Any) -> str:
    return str(reply[0] or "") if isinstance(reply, list) and reply else ""


def _parse_hint(message: str) -> tuple[Shard, int] | None:
    head, _, score = message.partition(" ")
    queue, _, digits = head.rpartition(":")
    when = number(score)
    known = queue and digits.isascii() and digits.isdigit() and len(digits) < 10
    return (Shard(queue, int(digits)), when) if known and when is not None else None


def _score(points: Any, ready: Any, jobs: Any, jobs_ready: Any) -> Any:
    if points is not None or jobs is not None:
        return jobs if points is None else points
    return None if ready is None and jobs_ready is None else 0


def _view(score: Any, point: Any, generation: Any, leased: bool, retrying: bool) -> EntryView:
    read = instant_ms(point), number(score), number(generation)
    garbage = any(new is None and old is not None for new, old in zip(read, (point, score, generation), strict=True))
    return EntryView(*read, leased, retrying, garbage)


class Index(Protocol):
    @property
    def config(self) -> Config: ...
    @property
    def worker(self) -> str: ...

    def now_ms(self) -> int: ...
    def shard_of(self, member: str, queue: str) -> Shard: ...

    # -- for a worker

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim: ...
    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]: ...
    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled: ...

    # -- for the mirror

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, mode: Mode = "") -> list[str]: ...
    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]: ...
