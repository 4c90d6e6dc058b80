"""Redis' side of a snapshot, in a few round trips. Ages and delays are in seconds by Redis' clock, None if unknown."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..index import Broker, Shard, Stats
from ..index.keys import group_by
from ..sync import LIVE_SECONDS


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker by its last heartbeat; `heartbeat_age` and `uptime` are in seconds."""

    name: str
    queues: tuple[str, ...]
    heartbeat_age: float
    uptime: float | None = None
    running: int | None = None
    held: int | None = None
    threads: int | None = None
    memory_mb: int | None = None

    @property
    def live(self) -> bool:
        return self.heartbeat_age <= LIVE_SECONDS


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard; `oldest_due` is the number of seconds its head has been due, None if nothing is due.

    Jobs include backfilled points. `epoch` is `built`, `building` (from the database) or `absent` (Redis was flushed).
    """

    queue: str
    shard: int
    members: int
    due: int
    leased: int
    oldest_due: float | None
    epoch: str
    jobs: int = 0
    jobs_due: int = 0


class QueueView(NamedTuple):
    """The sum of a queue's shards. `oldest_due` is 0.0 if nothing is due, `served` whether a live worker serves it."""

    queue: str
    oldest_due: float
    served: bool
    members: int
    due: int
    leased: int
    jobs: int
    jobs_due: int


SUMMED = QueueView._fields[3:]


@dataclass(frozen=True, slots=True)
class ServerView:
    """The Redis or Valkey server. `disk_problem` is the INFO field that reports a failed write to disk."""

    name: str = ""
    version: str = ""
    memory_policy: str = ""
    used_bytes: int | None = None
    max_bytes: int | None = None
    appendonly: bool | None = None
    disk_problem: str = ""


#: Seconds of waiting above which workers are considered busy.
WAITING_SECONDS = 1.0


@dataclass(frozen=True)
class RedisView:
    """Redis' side of a snapshot. `servers` has one item for each primary."""

    workers: tuple[WorkerView, ...]
    shards: tuple[ShardView, ...]
    servers: tuple[ServerView, ...] = ()

    @cached_property
    def queues(self) -> tuple[QueueView, ...]:
        found = []
        for queue, shards in group_by(self.shards, lambda shard: shard.queue).items():
            sums = {name: sum(getattr(shard, name) for shard in shards) for name in SUMMED}
            oldest = max(shard.oldest_due or 0.0 for shard in shards)
            found.append(QueueView(queue, oldest, self.is_served(queue), **sums))
        return tuple(found)

    @property
    def live(self) -> list[WorkerView]:
        return [worker for worker in self.workers if worker.live]

    def is_served(self, queue: str) -> bool:
        return any(worker.live and queue in worker.queues for worker in self.workers)

    @cached_property
    def sums(self) -> dict[str, int]:
        return {name: sum(getattr(queue, name) for queue in self.queues) for name in SUMMED}


def read_redis(broker: Broker) -> RedisView:
    """Return the view of Redis. Raises BrokerError if it does not answer, or answers with an error."""
    shards = broker.list_shards()
    stats = broker.read_stats(shards)
    now_ms = stats[0].now_ms
    workers = [
        _build_worker_view(name, beat_ms, text, now_ms)
        for name, (beat_ms, text) in broker.read_workers().items()
        if name.isprintable()  # else it is garbage of another program
    ]
    return RedisView(
        workers=tuple(sorted(workers, key=lambda worker: (round(worker.heartbeat_age, -1), worker.name))),
        shards=tuple(_build_shard_view(shard, each) for shard, each in zip(shards, stats, strict=True)),
        servers=tuple(map(_build_server_view, broker.read_info("default"))),
    )


def _build_worker_view(name: str, beat_ms: int, text: str, now_ms: int) -> WorkerView:
    try:
        details = json.loads(text)
    except (ValueError, RecursionError):
        details = None
    if not isinstance(details, dict):  # invalid or not written yet; the heartbeat is still valid
        details = {}
    queues, started = details.get("queues"), _parse_whole(details.get("started"))
    return WorkerView(
        name=name,
        queues=tuple(filter(str.isprintable, map(str, queues))) if isinstance(queues, list) else (),
        heartbeat_age=max(0.0, (now_ms - beat_ms) / 1000),
        uptime=None if started is None else max(0.0, round(now_ms / 1000 - started, 3)),
        **{name: _parse_whole(details.get(name)) for name in ("running", "held", "threads", "memory_mb")},
    )


def _parse_whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _build_shard_view(shard: Shard, stats: Stats) -> ShardView:
    epoch = "built"
    if stats.epoch is None:
        epoch = "absent"
    elif stats.epoch.startswith("building:"):
        epoch = "building"
    waiting = None if stats.head_ms is None or stats.head_ms > stats.now_ms else (stats.now_ms - stats.head_ms) / 1000
    counts = stats.members, stats.due, stats.leased
    return ShardView(shard.queue, shard.number, *counts, waiting, epoch, stats.jobs, stats.jobs_due)


def _build_server_view(info: Mapping[str, Any]) -> ServerView:
    name = str(info.get("server_name", "redis")) if info else ""
    failed = [key for key in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(key, "ok") != "ok"]
    return ServerView(
        name=name,
        version=str(info.get(f"{name}_version", info.get("redis_version", ""))),
        memory_policy=str(info.get("maxmemory_policy", "")),
        used_bytes=_parse_whole(info.get("used_memory")),
        max_bytes=_parse_whole(info.get("maxmemory")) or None,
        appendonly=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        disk_problem=failed[0] if failed else "",
    )
