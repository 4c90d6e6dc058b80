"""What concerns a whole prefix: its layout, its workers, its sweeps, hints, repair. Knows no member."""

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from .. import conf
from . import keys
from .cluster import close, node_of, primaries
from .connection import connector, translated
from .engine import run_ids, told
from .keys import Shard
from .scripts import Scripts, clock_ms, number, text, wire

SCAN_PAGE = 1000


class Prefix:
    """The part of `Broker` that no shard has a part in."""

    def __init__(self, *, timeout_seconds: float, worker: str = "-", client: Any = None) -> None:
        """Connect lazily, by the alias of the settings. `worker` names this process' claim journal."""
        self.config = conf.get_config()
        self.worker = worker
        self._client = client
        self._scripts = None if client is None else Scripts(client)
        self._connector = connector(timeout_seconds=timeout_seconds) if client is None else None
        self._connecting = Lock()
        self._channel = keys.wake_channel(self.config.prefix)

    @property
    def client(self) -> Any:
        """The client, made when it is first needed: that of a cluster connects at once.

        Raises:
            BrokerUnavailable: No node of the cluster answers.
        """
        with self._connecting:
            self._connect()
            return self._client

    @property
    def scripts(self) -> Scripts:
        """What runs scripts on that client's servers; raises what `client` does."""
        scripts = self._scripts
        if scripts is None:
            with self._connecting:
                self._connect()
                scripts = self._scripts
            assert scripts is not None  # noqa: S101 - made with the client
        return scripts

    def _connect(self) -> None:
        if self._client is None and self._connector is not None:
            with translated():
                self._client = self._connector()
            self._scripts = Scripts(self._client)

    def close(self) -> None:
        """Close the connections. Whoever uses this broker again opens others."""
        with self._connecting:
            if self._client is None:
                return
            close(self._client)
            if self._connector is not None:
                self._client = self._scripts = None

    # -- the server

    def now_ms(self) -> int:
        """Return the server's clock; in a cluster that of the node with the heartbeats."""
        key = keys.workers_key(self.config.prefix)
        with translated():
            return clock_ms(self.client.time(**node_of(self.client, key)))

    def info(self, section: str) -> list[Mapping[str, Any]]:
        """Return a section of INFO: of the server, or of each primary of a cluster; empty where it is refused."""
        with translated():
            targets = primaries(self.client)
        return [told(self.client, section, target) for target in targets]

    def run_ids(self) -> str:
        """Return what names the servers: another one where one was restarted, or a replica took a primary's place.

        Empty where they do not tell.
        """
        return run_ids(self.info("server"))

    # -- layout and workers

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

    def live_workers(self, *, since_ms: int) -> list[str]:
        """Return the workers whose last heartbeat is not older."""
        with translated():
            found = self.client.zrangebyscore(keys.workers_key(self.config.prefix), since_ms, "+inf")
        return [text(name) for name in found]

    def details_of(self, workers: Sequence[str]) -> dict[str, str]:
        """Return the details of those of these workers that have told them."""
        if not workers:
            return {}
        with translated():
            found = self.client.hmget(keys.worker_details_key(self.config.prefix), [wire(name) for name in workers])
        return {name: text(value) for name, value in zip(workers, found, strict=True) if value is not None}

    def workers(self) -> dict[str, tuple[int, str]]:
        """Return worker -> (ms of its last heartbeat, 0 for garbage; its details)."""
        prefix = self.config.prefix
        with translated():
            beats = self.client.zrange(keys.workers_key(prefix), 0, -1, withscores=True)
            details = {text(k): text(v) for k, v in self.client.hgetall(keys.worker_details_key(prefix)).items()}
        return {text(name): (number(score) or 0, details.get(text(name), "")) for name, score in beats}

    # -- sweeps

    def begin_sweep(self, token: str, *, ttl_ms: int) -> bool:
        """Set the mark of a sweep, unless another one stands; say whether it was set.

        A mark that never ends was damaged: it is nobody's, and would keep all sweeps away.
        """
        key = keys.sweep_key(self.config.prefix)
        with translated():
            if self.client.pttl(key) == -1:
                self.client.delete(key)
            return bool(self.client.set(key, token, nx=True, px=ttl_ms))

    def keep_sweep(self, token: str, *, ttl_ms: int) -> bool:
        """Let the mark stand for longer; False where it is another's or gone.

        Not atomic: a mark that changes hands in between stands for longer too. It only saves work, and guards nothing.
        """
        key = keys.sweep_key(self.config.prefix)
        with translated():
            held = self.client.get(key)
            return held is not None and text(held) == token and bool(self.client.pexpire(key, ttl_ms))

    def end_sweep(self, token: str) -> None:
        """Take the mark away where it still is this one."""
        key = keys.sweep_key(self.config.prefix)
        with translated():
            held = self.client.get(key)
            if held is not None and text(held) == token:
                self.client.delete(key)

    def sweep_mark(self) -> str | None:
        """Return the mark of the sweep that is under way."""
        with translated():
            value = self.client.get(keys.sweep_key(self.config.prefix))
        return None if value is None else text(value)

    def last_sweep(self) -> str | None:
        """Return what was noted of the last full sweep."""
        with translated():
            value = self.client.get(keys.swept_key(self.config.prefix))
        return None if value is None else text(value)

    def note_sweep(self, value: str | None) -> None:
        """Note the last full sweep; None makes one due, and ends the one that is under way."""
        with translated():
            if value is None:
                self.client.delete(keys.swept_key(self.config.prefix), keys.sweep_key(self.config.prefix))
            else:
                self.client.set(keys.swept_key(self.config.prefix), value)

    # -- hints, repair, purge

    def hints(self, *, timeout_seconds: float) -> Iterator[tuple[Shard, int] | None]:
        """Subscribe and yield (shard, head_ms) hints; None after every `timeout_seconds` without one."""
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

    def repair(self, shard: Shard) -> list[str]:
        """Delete the keys of a foreign type of this shard and of the prefix; return their names.

        With the shard's keys the epoch goes too, so that a rebuild follows.
        """
        names = keys.all_keys(self.config.prefix, shard, self.worker)
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

    def _own_keys(self) -> Iterator[list[Any]]:
        for pattern in keys.patterns(self.config.prefix):
            with translated():
                found = list(self.client.scan_iter(match=pattern, count=SCAN_PAGE))
            yield [name for name in found if keys.is_own(self.config.prefix, text(name))]

    def _delete(self, names: list[Any]) -> int:
        with translated():
            return sum(int(self.client.unlink(name)) for name in names)


def _parse_hint(message: str) -> tuple[Shard, int] | None:
    head, _, score = message.partition(" ")
    queue, _, digits = head.rpartition(":")
    when = number(score)
    known = queue and digits.isascii() and digits.isdigit() and len(digits) < 10
    return (Shard(queue, int(digits)), when) if known and when is not None else None
