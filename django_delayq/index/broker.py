"""One typed method per script, and the few plain reads and writes. No decision is taken here."""

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
#: A server that does not confirm a subscription within so long is asked again.
CONFIRM_SECONDS = 2.0
#: For so long a worker that does not renew the upkeep lease keeps it.
UPKEEP_MS = 15_000
#: Items that one run of a script of the mirror takes: some 0.5 ms of Redis.
SCRIPT_PART = 100
#: A lost reply is asked for again within seconds; the journal must outlive the lease by more than that.
JOURNAL_GRACE_MS = 60_000
#: The parts of a shard that have its members, each in one of them.
SCORED = ("due", "ready", "jobs", "jobs-ready")
#: Of these, those that have the ends of leases: what is leased waits for no turn.
LEASED = ("due", "jobs")
#: The commands that scripts use, as `probe` tries them: DEL first, since it needs no memory, and SET with PX behind
#: most others, so that the key ends even where DEL is refused.
TRIED = (
    "TIME", "DEL KEY", "ZADD KEY NX N m", "ZMSCORE KEY m", "ZRANGE KEY -inf N BYSCORE LIMIT 0 1", "ZCOUNT KEY -inf N",
    "ZCARD KEY", "ZREM KEY m", "HSET KEY m N", "HMGET KEY m", "HGET KEY m", "HGETALL KEY", "HEXISTS KEY m", "HLEN KEY",
    "HDEL KEY m", "SET KEY N PX 1", "GET KEY", "PTTL KEY", "EXISTS KEY", "DEL KEY", "PUBLISH CHANNEL -",
)  # fmt: skip
#: The largest number that Lua, a score and JSON hold exactly. A removal with it takes out a member of any generation.
EXACT = 2**53 - 1


class Broker:
    """Redis as this package uses it. Safe to share between threads.

    Every method raises `BrokerUnavailable` where trying again later is right, `DamagedKeys` where a key has a foreign
    type, `BrokerError` for any other error reply. No method retries.
    """

    def __init__(self, *, timeout_seconds: float, worker: str = "-", client: Any = None) -> None:
        """Connect lazily, by the alias of the settings. `worker` names this process' claim journal."""
        self.config = conf.get_config()
        self.worker = worker
        self._shard_count = cache(self.config.shard_count)
        self._connect = connector(timeout_seconds=timeout_seconds) if client is None else lambda: client
        self._connected: tuple[Any, Scripts] | None = None
        self._connecting = Lock()
        self._channel = keys.wake_channel(self.config.prefix)

    @property
    def client(self) -> Any:
        """The client, made when it is first needed: that of a cluster connects at once.

        Raises:
            BrokerUnavailable: No node of the cluster answers.
        """
        return (self._connected or self._connect_now())[0]

    @property
    def scripts(self) -> Scripts:
        """What runs scripts on that client's servers; raises what `client` does."""
        return (self._connected or self._connect_now())[1]

    def _connect_now(self) -> tuple[Any, Scripts]:
        with self._connecting:
            if self._connected is None:
                with translated():
                    client = self._connect()
                self._connected = client, Scripts(client)
            return self._connected

    def close(self) -> None:
        """Close the connections. Whoever uses this broker again opens others."""
        with self._connecting:
            if self._connected is not None:
                close(self._connected[0])
                self._connected = None

    # -- plain commands

    def ask(self, command: str, *args: Any, **options: Any) -> Any:
        with translated():
            return getattr(self.client, command)(*args, **options)

    def ask_all(self, commands: Sequence[Callable[[Any], object]]) -> list[Any]:
        """Return the replies to commands, each a `methodcaller` for a pipeline, in one round trip."""
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
        """Return the server's clock; in a cluster that of the node with the heartbeats."""
        with translated():
            node = node_of(self.client, self._key("workers"))
        return clock_ms(self.ask("time", **node))

    def info(self, section: str) -> list[Mapping[str, Any]]:
        """Return a section of INFO: of the server, or of each primary of a cluster; empty where it is refused."""
        return [info_of(self, section, target) for target in primaries(self.client)]

    def run_ids(self) -> str:
        """Return what names the servers: another one where one was restarted, or a replica took a primary's place.

        Empty where they do not tell.
        """
        return run_ids(self.info("server"))

    # -- layout and workers

    def _get(self, name: str) -> str | None:
        value = self.ask("get", self._key(name))
        return None if value is None else text(value)

    def layout(self) -> str | None:
        """Return the stored layout, as written by `claim_layout`."""
        return self._get("layout")

    def claim_layout(self, value: str) -> str:
        """Store the layout if there is none; return the one that stands."""
        self.ask("set", self._key("layout"), value, nx=True)
        standing = self.layout()
        return value if standing is None else standing

    def write_layout(self, value: str) -> None:
        self.ask("set", self._key("layout"), value)

    def heartbeat(self, now_ms: int, details: str) -> None:
        """Say that this worker lives, and what it does."""
        self.ask("hset", self._key("worker-details"), self.worker, details)
        self.ask("zadd", self._key("workers"), {self.worker: now_ms})

    def farewell(self) -> None:
        self.ask("zrem", self._key("workers"), self.worker)
        self.ask("hdel", self._key("worker-details"), self.worker)

    def live_workers(self, *, since_ms: int) -> int:
        """Return how many workers there are whose last heartbeat is not older."""
        return int(self.ask("zcount", self._key("workers"), since_ms, "+inf"))

    def workers(self) -> dict[str, tuple[int, str]]:
        """Return worker -> (ms of its last heartbeat, 0 for garbage; its details)."""
        beats = self.ask("zrange", self._key("workers"), 0, -1, withscores=True)
        details = {text(k): text(v) for k, v in self.ask("hgetall", self._key("worker-details")).items()}
        return {text(name): (number(score) or 0, details.get(text(name), "")) for name, score in beats}

    # -- upkeep: see `worker/upkeep.py`, Note [One lease]

    def take_upkeep(self) -> float:
        """Take the upkeep lease if it is free; return for how many seconds it is another's, 0 where it is ours now.

        A lease that lasts for longer, or never ends, was damaged, and belongs to no worker.
        """
        left_ms = self.ask("pttl", self._key("upkeep"))
        if 0 < left_ms <= UPKEEP_MS:
            return float(left_ms / 1000)
        free = left_ms in (0, -2)
        taken = self.ask("set", self._key("upkeep"), self.worker, px=UPKEEP_MS, nx=free)
        return 0.0 if taken else UPKEEP_MS / 1000

    def seize_upkeep(self, holder: str = "") -> None:
        """Take the upkeep lease, or renew it, whichever worker has it."""
        self.ask("set", self._key("upkeep"), holder or self.worker, px=UPKEEP_MS)

    def keep_upkeep(self) -> bool:
        """Renew the upkeep lease; False where it is another's, which then lasts longer once, or free."""
        holder = self.ask("getex", self._key("upkeep"), px=UPKEEP_MS)
        return holder is not None and text(holder) == self.worker

    def end_upkeep(self, holder: str = "") -> None:
        """Give the upkeep lease back if it still is ours."""
        if self.upkeep_holder() == (holder or self.worker):
            self.ask("delete", self._key("upkeep"))

    def upkeep_holder(self) -> str | None:
        """Return the worker that does the upkeep; None where none does."""
        return self._get("upkeep")

    def last_sweep(self) -> str | None:
        """Return the note of the last full sweep."""
        return self._get("swept")

    def note_sweep(self, value: str | None) -> None:
        """Note the last full sweep; None makes one due, and ends the upkeep that is under way."""
        if value is None:
            self.ask("delete", self._key("swept"))
            self.ask("delete", self._key("upkeep"))
        else:
            self.ask("set", self._key("swept"), value)

    def missed_mark(self) -> str | None:
        """Return how far rows were looked through that were not put: see `sync/missed.py`."""
        return self._get("missed")

    def note_missed_mark(self, value: str) -> None:
        """Write it in place of what was noted last."""
        self.ask("set", self._key("missed"), value)

    def last_pruning(self) -> str | None:
        """Return the note of the last pass of pruning."""
        return self._get("pruned")

    def note_pruning(self, value: str) -> None:
        """Note how far a pass of pruning came."""
        self.ask("set", self._key("pruned"), value)

    # -- hints, repair, purge

    def hints(self, *, timeout_seconds: float) -> Iterator[tuple[Shard, int] | None]:
        """Subscribe and yield (shard, head_ms) hints; None when confirmed, and after `timeout_seconds` without one."""
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
        """Delete the keys of a foreign type of this shard and of the prefix; return their names.

        With the shard's keys the epoch goes too, so that a rebuild follows.
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
        """Delete every key under the prefix; return how many there were."""
        return sum(int(self.ask("unlink", name)) for page in self._own_keys() for name in page)

    def _own_keys(self) -> Iterator[list[Any]]:
        for pattern in keys.patterns(self.config.prefix):
            with translated():
                found = list(self.client.scan_iter(match=pattern, count=SCAN_PAGE))
            yield [name for name in found if keys.is_own(self.config.prefix, text(name))]

    # -- shards and members

    def shard_of(self, member: str, queue: str) -> Shard:
        """Return where a member of a queue lives under the configured number of shards."""
        return Shard(queue, crc32(wire(member)) % self._shard_count(queue))

    def shards(self, queues: Iterable[str] | None = None) -> list[Shard]:
        """Return every shard of these queues, by default of all."""
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

    # -- what a worker does

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim:
        """Lease up to `limit` due members until `lease_ms` from the server's now, in their turn: see Note [Lanes].

        `most`: so many leases may stand in the shard; None for any number.

        Repeated with the same `request` after a lost reply it returns those of that claim that are still held, with
        their leases renewed. A lower number than the last one gets nothing. One open claim per process and shard.
        """
        journal_ms = 4 * lease_ms + JOURNAL_GRACE_MS
        args = [limit, lease_ms, request, journal_ms, self.worker, "" if most is None else most, secrets.token_hex(8)]
        return read_claim(self._run("claim", shard, args), self.worker)

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]:
        """Extend these leases, (member, holder) each; return the members that are no longer ours."""
        return {text(member) for member in self._run("renew", shard, (lease_ms, packed(leases)))}

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        """Give members back; per member 1 applied, 2 edited meanwhile, 0 no longer ours."""
        return read_settled(self._run("settle", shard, (self._channel, packed(settlements))))

    # -- what the mirror does

    def upsert(self, shard: Shard, definitions: Sequence[Definition], *, mode: Mode = "") -> list[str]:
        """Mirror schedules or rows, each member once; return what became of each, in the words of upsert.lua.

        Modes: see there. What is leased stays as it is. One round trip, in parts: none blocks Redis for longer than a
        part takes.
        """
        parts = [definitions[at : at + SCRIPT_PART] for at in range(0, len(definitions), SCRIPT_PART)]
        calls = [(shard, (self._channel, mode, packed(part))) for part in parts]
        return [word for reply in self._run_each("upsert", calls) for word in text(reply).split()]

    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        """Mirror the end of (member, generation, expected); return what became of each, in the words of upsert.lua.

        `gone`: deleted or moved away, so that nobody has a due point to record any more.
        """
        ended = [Definition(member, generation, 0, 0, expected) for member, generation, expected in members]
        return self.upsert(shard, ended, mode="gone" if gone else "end")

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

    def count_leases(self, shards: Sequence[Shard]) -> int:
        """Count the leases that have not ended, whether their holders live or not."""
        now_ms = self.now_ms()
        parts, ends = [self._keys(shard) for shard in shards], []
        holders = self.ask_all([methodcaller("hgetall", names["lease"]) for names in parts])
        for names, found in zip(parts, holders, strict=True):
            members = [member for member, holder in found.items() if " " in text(holder)]  # else it was handed back
            ends += [methodcaller("zmscore", names[part], members) for part in LEASED if members]
        scores = self.ask_all(ends)
        return sum(score is not None and 0 < score - now_ms <= LONGEST_WAIT_MS for page in scores for score in page)

    # -- before anything else

    def probe(self, shard: Shard) -> Trial:
        """Try on a key that is gone afterwards what the scripts need, with `EXACT`; sends a hint that says nothing."""
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
    """Return a member's score, 0 where it waits for its turn."""
    if points is not None or jobs is not None:
        return jobs if points is None else points
    return None if ready is None and jobs_ready is None else 0


def _view(score: Any, point: Any, generation: Any, leased: bool, retrying: bool) -> EntryView:
    read = instant_ms(point), number(score), number(generation)
    garbage = any(new is None and old is not None for new, old in zip(read, (point, score, generation), strict=True))
    return EntryView(*read, leased, retrying, garbage)


class Index(Protocol):
    """Members, each with a due point and a score, in shards. What a method does is told at `Broker`."""

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
