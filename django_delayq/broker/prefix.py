"""What concerns a whole prefix: its layout, its workers, its upkeep, hints, repair. Knows no member."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from .. import conf
from . import keys
from .cluster import close, node_of, primaries
from .connection import connector, translated
from .engine import info_of, run_ids
from .keys import Shard
from .scripts import Scripts, clock_ms, number, text

SCAN_PAGE = 1000
#: A server that does not confirm a subscription within so long is asked again.
CONFIRM_SECONDS = 2.0
#: For so long a worker that does not renew the upkeep lease keeps it.
UPKEEP_MS = 15_000


class Prefix:
    """The part of `Broker` that no shard has a part in."""

    def __init__(self, *, timeout_seconds: float, worker: str = "-", client: Any = None) -> None:
        """Connect lazily, by the alias of the settings. `worker` names this process' claim journal."""
        self.config = conf.get_config()
        self.worker = worker
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
        return self._both()[0]

    @property
    def scripts(self) -> Scripts:
        """What runs scripts on that client's servers; raises what `client` does."""
        return self._both()[1]

    def _both(self) -> tuple[Any, Scripts]:
        both = self._connected
        if both is None:
            with self._connecting:
                both = self._connected
                if both is None:
                    with translated():
                        client = self._connect()
                    self._connected = both = client, Scripts(client)
        return both

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

    def heartbeat(self, now_ms: int, details: str | None = None) -> None:
        """Say that this worker lives; `details` only where they changed."""
        if details is not None:
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
        """Return how far rows were looked through that were not put: see `mirror/missed.py`."""
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


def _parse_hint(message: str) -> tuple[Shard, int] | None:
    head, _, score = message.partition(" ")
    queue, _, digits = head.rpartition(":")
    when = number(score)
    known = queue and digits.isascii() and digits.isdigit() and len(digits) < 10
    return (Shard(queue, int(digits)), when) if known and when is not None else None
