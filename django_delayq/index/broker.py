"""One typed method per Lua script, and plain reads and writes. Makes no decisions."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import methodcaller
from threading import Lock
from typing import Any
from zlib import crc32

from .. import conf
from ..exceptions import BrokerError
from . import keys
from .connection import build_connector, close, find_node, is_refusal, list_primaries, translated
from .keys import LONGEST_WAIT_MS, Claim, EntryDefinition, EntryView, Mode, Settled, Settlement, Shard, Stats, group_by
from .scripts import decode_text, encode_text, packed, parse_number, read_claim, read_hint, read_view, run_script

SCAN_PAGE = 1000
#: Maximum seconds to wait for the confirmation of a subscription.
CONFIRM_SECONDS = 2.0
#: Duration of the upkeep lease.
UPKEEP_MS = 15_000
#: Maximum items per run of a script: about 0.5 ms of Redis.
SCRIPT_PART = 100
#: Added to the lifetime of a claim journal (four leases). Claims with a lost reply are repeated within seconds.
JOURNAL_GRACE_MS = 60_000
#: Parts of a shard that hold its members; each member is in exactly one.
SCORED = ("due", "ready", "jobs", "jobs-ready")
#: Those that hold the ends of leases. A leased member is never among the ready ones.
LEASED = ("due", "jobs")
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
        self._shard_count = cache(self.config.get_shard_count)
        self._connect = build_connector(timeout_seconds=timeout_seconds) if client is None else lambda: client
        self._connected: Any = None
        self._connecting = Lock()
        self._channel = keys.build_wake_channel(self.config.prefix)

    @property
    def client(self) -> Any:
        """The client, created on first use; a cluster's client then connects and may raise `BrokerUnavailable`."""
        with self._connecting:
            if self._connected is None:
                with translated():
                    self._connected = self._connect()
            return self._connected

    def close(self) -> None:
        """Close the connections. The next command opens new ones."""
        with self._connecting:
            if self._connected is not None:
                close(self._connected)
                self._connected = None

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

    def _build_key(self, name: str) -> str:
        return f"{self.config.prefix}:{name}"

    # -- the server

    def read_now_ms(self) -> int:
        """Return the server's clock; in a cluster, the clock of the node that stores the heartbeats."""
        return self._read_clock_ms(self._find_node(self._build_key("workers")))

    def read_clocks_ms(self, shards: Sequence[Shard]) -> list[int]:
        """Return the clock of each shard's server (in a cluster, of its node)."""
        nodes = [self._find_node(self._build_keys(shard)["due"]) for shard in shards]
        clocks = {name: self._read_clock_ms(node) for name, node in {str(node): node for node in nodes}.items()}
        return [clocks[str(node)] for node in nodes]

    def _find_node(self, key: str) -> dict[str, Any]:
        with translated():
            return find_node(self.client, key)

    def _read_clock_ms(self, node: Mapping[str, Any]) -> int:
        seconds, micros = self.ask("time", **node)
        return int(seconds) * 1000 + int(micros) // 1000

    def read_info(self, section: str) -> list[Mapping[str, Any]]:
        """Return one section of INFO per server (per primary of a cluster); empty where the server refuses INFO."""
        return [self.read_node_info(section, target) for target in list_primaries(self.client)]

    def read_node_info(self, section: str, target: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return dict(self.ask("info", section, **target))
        except BrokerError as error:
            if not is_refusal(error):
                raise
            return {}

    def read_run_ids(self) -> str:
        """Return the run ids of the servers, '' if unknown. They change after a restart or a failover."""
        return " ".join(sorted(str(about["run_id"]) for about in self.read_info("server") if about.get("run_id")))

    # -- layout and workers

    def read_note(self, name: str) -> str | None:
        """Return a text that belongs to no shard: see `keys.OF_THE_PREFIX`."""
        value = self.ask("get", self._build_key(name))
        return None if value is None else decode_text(value)

    def write_note(self, name: str, value: str) -> None:
        self.ask("set", self._build_key(name), value)

    def read_layout(self) -> str | None:
        return self.read_note("layout")

    def claim_layout(self, value: str) -> str:
        """Store the layout unless there is one; return the stored one."""
        self.ask("set", self._build_key("layout"), value, nx=True)
        stored = self.read_layout()
        return value if stored is None else stored

    def write_heartbeat(self, now_ms: int, details: str) -> None:
        self.ask("hset", self._build_key("worker-details"), self.worker, details)
        self.ask("zadd", self._build_key("workers"), {self.worker: now_ms})

    def remove_heartbeat(self) -> None:
        self.ask("zrem", self._build_key("workers"), self.worker)
        self.ask("hdel", self._build_key("worker-details"), self.worker)

    def count_live_workers(self, *, since_ms: int) -> int:
        return int(self.ask("zcount", self._build_key("workers"), since_ms, "+inf"))

    def read_workers(self) -> dict[str, tuple[int, str]]:
        """Return {worker: (ms of its last heartbeat, 0 for garbage; its details)}."""
        beats = self.ask("zrange", self._build_key("workers"), 0, -1, withscores=True)
        found = self.ask("hgetall", self._build_key("worker-details"))
        details = {decode_text(name): decode_text(value) for name, value in found.items()}
        named = [(decode_text(name), parse_number(score) or 0) for name, score in beats]
        return {name: (beat, details.get(name, "")) for name, beat in named}

    # -- upkeep: see `worker/upkeep.py`, Note [One upkeep worker]

    def take_upkeep(self) -> float:
        """Take the upkeep lease if it is free or damaged. Return 0 if this worker has taken it, else when to try again:
        the seconds until the other worker's lease ends.
        """
        left_ms = self.ask("pttl", self._build_key("upkeep"))
        if 0 < left_ms <= UPKEEP_MS:
            return float(left_ms / 1000)
        taken = self.ask("set", self._build_key("upkeep"), self.worker, px=UPKEEP_MS, nx=left_ms in (0, -2))
        return 0.0 if taken else UPKEEP_MS / 1000

    def seize_upkeep(self) -> None:
        """Take or renew the upkeep lease, whichever worker holds it."""
        self.ask("set", self._build_key("upkeep"), self.worker, px=UPKEEP_MS)

    def keep_upkeep(self) -> bool:
        """Renew the upkeep lease. Return False if it is free, or another worker's, which this call then extends."""
        holder = self.ask("getex", self._build_key("upkeep"), px=UPKEEP_MS)
        return holder is not None and decode_text(holder) == self.worker

    def end_upkeep(self) -> None:
        if self.read_upkeep_holder() == self.worker:
            self.ask("delete", self._build_key("upkeep"))

    def read_upkeep_holder(self) -> str | None:
        return self.read_note("upkeep")

    def forget_sweep(self) -> None:
        """Make a full sweep due, and end the upkeep that is running."""
        self.ask("delete", self._build_key("swept"))
        self.ask("delete", self._build_key("upkeep"))

    # -- hints, repair, purge

    def receive_hints(self, *, timeout_seconds: float) -> Iterator[tuple[Shard, int] | None]:
        """Subscribe; yield hints, (shard, head_ms), and None once subscribed and after each timeout without one."""
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
                yield read_hint(decode_text(message["data"])) if message and message["type"] == "message" else None
        finally:
            pubsub.close()

    def repair(self, shard: Shard) -> list[str]:
        """Delete keys of a foreign type, and the epoch of a shard that loses one; return their names."""
        names = keys.build_keys(self.config.prefix, shard, self.worker)
        bad = self._find_foreign({name: keys.TYPES[part] for part, name in names.items()})
        if bad:
            self.ask("delete", *bad, names["epoch"])
        others = self._find_foreign(keys.list_prefix_keys(self.config.prefix))
        for name in others:
            self.ask("delete", name)
        return bad + others

    def _find_foreign(self, types: Mapping[str, str]) -> list[str]:
        return [name for name, kind in types.items() if decode_text(self.ask("type", name)) not in ("none", kind)]

    def purge(self) -> int:
        """Delete every key under the prefix; return their number."""
        return sum(int(self.ask("unlink", name)) for name in self.find_keys())

    def find_keys(self) -> list[Any]:
        prefix, found = self.config.prefix, list[Any]()
        with translated():
            for pattern in (f"{{{prefix}:*", *keys.list_prefix_keys(prefix)):
                found += self.client.scan_iter(match=pattern, count=SCAN_PAGE)
        return [name for name in found if keys.is_own(prefix, decode_text(name))]

    def get_shard(self, member: str, queue: str) -> Shard:
        return Shard(queue, crc32(encode_text(member)) % self._shard_count(queue))

    def list_shards(self, queues: Iterable[str] | None = None) -> list[Shard]:
        """Return every shard of these queues, by default of all queues."""
        names = self.config.queues if queues is None else queues
        return [Shard(queue, number) for queue in names for number in range(self._shard_count(queue))]

    def _build_keys(self, shard: Shard) -> dict[str, str]:
        return keys.build_keys(self.config.prefix, shard)

    def _run(self, name: str, shard: Shard, args: Sequence[Any], *, worker: str = "") -> Any:
        names = keys.encode_keys(self.config.prefix, shard, worker or self.worker)
        return run_script(self._connected or self.client, name, [(names, args)])[0]

    def _run_each(self, name: str, calls: Sequence[tuple[Shard, Sequence[Any]]]) -> list[Any]:
        made = [(keys.encode_keys(self.config.prefix, shard, self.worker), args) for shard, args in calls]
        return run_script(self.client, name, made)

    # -- for a worker

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim:
        """Lease up to `limit` due members for `lease_ms`; `most` limits the shard's leases. Note [Two lanes per claim].

        After a lost reply, the same `request` returns the members of that claim that are still held, with renewed
        leases. A lower number than the last one returns nothing. At most one open claim per process and shard.
        """
        journal_ms = 4 * lease_ms + JOURNAL_GRACE_MS
        args = [limit, lease_ms, request, journal_ms, self.worker, "" if most is None else most, secrets.token_hex(8)]
        return read_claim(self._run("claim", shard, args), self.worker)

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]:
        """Extend these leases, (member, holder) each; return the members that are no longer ours."""
        return {decode_text(member) for member in self._run("renew", shard, (lease_ms, packed(leases)))}

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        """Settle members. The reply for each: 1 applied, 2 edited during the lease, 0 no longer ours."""
        now, head, *replies = json.loads(decode_text(self._run("settle", shard, (self._channel, packed(settlements)))))
        return Settled(int(now), int(head) if head else None, [int(item) for item in replies])

    # -- for the mirror

    def upsert(self, shard: Shard, definitions: Sequence[EntryDefinition], *, mode: Mode = "") -> list[str]:
        """Mirror schedules or rows, each member once, in one round trip; return upsert.lua's word for each."""
        parts = [definitions[at : at + SCRIPT_PART] for at in range(0, len(definitions), SCRIPT_PART)]
        calls = [(shard, (self._channel, mode, packed(part))) for part in parts]
        return [word for reply in self._run_each("upsert", calls) for word in decode_text(reply).split()]

    def remove(self, shard: Shard, members: Sequence[tuple[str, int, str]], *, gone: bool = False) -> list[str]:
        """Mirror the end of (member, generation, expected); return upsert.lua's words. `gone`: nothing to record."""
        ended = [EntryDefinition(member, generation, 0, 0, expected) for member, generation, expected in members]
        return self.upsert(shard, ended, mode="gone" if gone else "end")

    def swap_epochs(self, shards: Sequence[Shard], expected: str | None, new: str, *, ttl_ms: int = 0) -> list[bool]:
        """Set each epoch that is `expected` (None: absent); return for each whether it was. `ttl_ms` 0: no expiry."""
        calls = [(shard, (expected or "", new, ttl_ms)) for shard in shards]
        return [bool(reply) for reply in self._run_each("epoch", calls)]

    def read_epochs(self, shards: Sequence[Shard]) -> list[str | None]:
        values = self.ask_all([methodcaller("get", self._build_keys(shard)["epoch"]) for shard in shards])
        return [decode_text(value) or None if value is not None else None for value in values]

    def take_over(self, shards: Sequence[Shard]) -> None:
        """Change the existing epochs, so that workers check whose index this is; then void all leases."""
        for shard in shards:
            self.ask("set", self._build_keys(shard)["epoch"], secrets.token_hex(4), xx=True)
        for shard in shards:
            self.ask("delete", self._build_keys(shard)["lease"])

    def drop(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            names = self._build_keys(shard)
            self.ask("unlink", *(name for part, name in names.items() if part != keys.OF_A_WORKER))

    def count_leases(self, shards: Sequence[Shard]) -> int:
        """Count the leases that have not ended, whether or not their holders are alive."""
        now_ms = self.read_now_ms()
        parts, ends = [self._build_keys(shard) for shard in shards], []
        holders = self.ask_all([methodcaller("hgetall", names["lease"]) for names in parts])
        for names, found in zip(parts, holders, strict=True):
            members = [member for member, holder in found.items() if " " in decode_text(holder)]  # '-' is not a holder
            ends += [methodcaller("zmscore", names[part], members) for part in LEASED if members]
        scores = self.ask_all(ends)
        return sum(score is not None and 0 < score - now_ms <= LONGEST_WAIT_MS for page in scores for score in page)

    def probe(self, shard: Shard, commands: Sequence[Sequence[str]]) -> list[Any]:
        """Run commands in a script, on a temporary key; return `EXACT` as Lua writes it, then the replies."""
        return list(json.loads(decode_text(self._run("probe", shard, [EXACT, packed(commands)], worker="probe"))))

    def read_stats(self, shards: Sequence[Shard]) -> list[Stats]:
        """Count the members of each shard, in one round trip; the shards at slightly different instants."""
        found = []
        for reply in self._run_each("stats", [(shard, []) for shard in shards]):
            now, members, due, leased, head, epoch, *counts = reply
            numbers = int(members), int(due), int(leased), parse_number(head), decode_text(epoch) or None
            found.append(Stats(int(now), *numbers, *map(int, counts)))
        return found

    def read_heads(self, shards: Sequence[Shard]) -> list[int | None]:
        """Return when each shard needs attention, in ms (0: immediately, None: empty), in one round trip."""
        commands: list[Any] = []
        for shard in shards:
            names = self._build_keys(shard)
            commands += [methodcaller("zrange", names[part], 0, 0, withscores=True) for part in LEASED]
            commands.append(methodcaller("exists", names["ready"], names["jobs-ready"]))
        replies = iter(self.ask_all(commands))
        found = []
        for points, jobs, ready in zip(replies, replies, replies, strict=True):
            # A damaged score: below 0 it is due, from 2^53 on never.
            scores = [max(0.0, float(head[0][1])) for head in (points, jobs) if head]
            first = min((int(score) for score in scores if score <= EXACT), default=None)
            found.append(0 if ready else first)
        return found

    def read_views(self, members: Sequence[tuple[str, str]]) -> list[EntryView]:
        """Return what Redis holds of each (member, queue), in one round trip."""
        by_shard = group_by(range(len(members)), lambda index: self.get_shard(*members[index]))
        commands = []
        for shard, indexes in by_shard.items():
            names, parts = [encode_text(members[index][0]) for index in indexes], self._build_keys(shard)
            commands += [methodcaller("zmscore", parts[part], names) for part in SCORED]
            commands += [methodcaller("hmget", parts[part], names) for part in ("point", "gen", "lease", "attempts")]
        replies = iter(self.ask_all(commands))
        found: dict[int, EntryView] = {}
        for indexes in by_shard.values():
            columns = [next(replies) for _ in range(len(SCORED) + 4)]
            for index, *scores, point, generation, lease, attempts in zip(indexes, *columns, strict=True):
                found[index] = read_view(scores, point, generation, lease, attempts)
        return [found[index] for index in range(len(members))]

    def scan(self, shard: Shard) -> Iterator[set[str]]:
        """Yield the names of all members of a shard in pages: those with a score, then leftovers of others."""
        parts = self._build_keys(shard)
        for part in (*SCORED, "point", "gen", "priority", "lease", "attempts"):
            read, cursor = "zscan" if part in SCORED else "hscan", None
            while cursor != 0:
                cursor, page = self.ask(read, parts[part], cursor or 0, count=SCAN_PAGE)
                names = [item[0] if isinstance(item, tuple) else item for item in page]
                found = {decode_text(name) for name in names}
                if names and part not in SCORED:
                    scores = self.ask_all([methodcaller("zmscore", parts[scored], names) for scored in SCORED])
                    columns = zip(names, *scores, strict=True)
                    found -= {decode_text(name) for name, *own in columns if own != [None] * len(SCORED)}
                if found:
                    yield found
