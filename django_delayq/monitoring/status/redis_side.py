"""Reads workers and shards from Redis in a few round trips, regardless of the number of entries."""

import json
from collections.abc import Mapping
from typing import Any

from ...index import Broker, Shard, Stats
from .snapshot import RedisView, ServerView, ShardView, WorkerView


def read_redis(broker: Broker, *, server: bool) -> RedisView:
    """Return the view of Redis; with `server` including INFO.

    Raises:
        BrokerError: Redis does not answer, or answers with an error.
    """
    shards = broker.shards()
    stats = broker.stats(shards)
    now_ms = stats[0].now_ms
    workers = [_worker(name, beat_ms, text, now_ms) for name, (beat_ms, text) in broker.workers().items()]
    return RedisView(
        workers=tuple(sorted(workers, key=lambda worker: (round(worker.heartbeat_age, -1), worker.name))),
        shards=tuple(_shard_view(shard, each) for shard, each in zip(shards, stats, strict=True)),
        servers=tuple(map(_server, broker.info("default"))) if server else None,
    )


def _worker(name: str, beat_ms: int, text: str, now_ms: int) -> WorkerView:
    try:
        details = json.loads(text)
    except (ValueError, RecursionError):
        details = None
    if not isinstance(details, dict):  # invalid or not written yet; the heartbeat is still valid
        details = {}
    queues, started = details.get("queues"), _whole(details.get("started"))
    return WorkerView(
        name=name,
        queues=tuple(map(str, queues)) if isinstance(queues, list) else (),
        heartbeat_age=max(0.0, (now_ms - beat_ms) / 1000),
        uptime=None if started is None else max(0.0, round(now_ms / 1000 - started, 3)),
        running=_whole(details.get("running")),
        held=_whole(details.get("held")),
        threads=_whole(details.get("threads")),
        memory_mb=_whole(details.get("memory_mb")),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _shard_view(shard: Shard, stats: Stats) -> ShardView:
    epoch = "built"
    if stats.epoch is None:
        epoch = "absent"
    elif stats.epoch.startswith("building:"):
        epoch = "building"
    waiting = None if stats.head_ms is None or stats.head_ms > stats.now_ms else (stats.now_ms - stats.head_ms) / 1000
    counts = stats.members, stats.due, stats.leased
    return ShardView(shard.queue, shard.number, *counts, waiting, epoch, stats.jobs, stats.jobs_due)


def _server(info: Mapping[str, Any]) -> ServerView:
    name = str(info.get("server_name", "redis")) if info else ""
    failed = [key for key in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(key, "ok") != "ok"]
    return ServerView(
        name=name,
        version=str(info.get(f"{name}_version", info.get("redis_version", ""))),
        memory_policy=str(info.get("maxmemory_policy", "")),
        used_bytes=_whole(info.get("used_memory")),
        max_bytes=_whole(info.get("maxmemory")) or None,
        appendonly=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        disk_problem=failed[0] if failed else "",
    )
