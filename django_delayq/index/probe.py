"""Judges a server's fitness, for workers and for `check --deploy`.

Note [A worker refuses a server that would lose due points]
A worker refuses a server that would silently lose or falsify due points later: one that evicts keys, or does not run
the scripts as required. It warns once, in its log, of problems that cost nothing yet or are not certain. It examines
the servers at its start, and after a restart or failover of theirs. A refusal then drains the worker: it still records
running tasks.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .. import conf
from ..exceptions import BrokerError
from . import keys
from .broker import EXACT, Broker
from .connection import find_node, is_refusal, list_primaries, translated
from .keys import Shard

logger = logging.getLogger("django_delayq.worker")

#: Maximum difference between clocks, in seconds, that is not reported.
CLOCK_SECONDS = 1.0
#: The commands of the scripts, in the order in which they are tried. DEL is the first write: it needs no memory. SET
#: with PX is late, so that the key expires even if DEL is refused.
TRIED = (
    "TIME", "DEL KEY", "ZADD KEY NX N m", "ZMSCORE KEY m", "ZRANGE KEY -inf N BYSCORE LIMIT 0 1", "ZCOUNT KEY -inf N",
    "ZCARD KEY", "ZREM KEY m", "HSET KEY m N", "HMGET KEY m", "HGET KEY m", "HGETALL KEY", "HEXISTS KEY m", "HLEN KEY",
    "HDEL KEY m", "SET KEY N PX 1", "GET KEY", "PTTL KEY", "EXISTS KEY", "DEL KEY", "PUBLISH CHANNEL -",
)  # fmt: skip
#: What some of them must reply: a server that loses digits would falsify points.
EXPECTED = {"EVAL": str(EXACT), "ZMSCORE": str(EXACT), "ZRANGE": "m", "HMGET": str(EXACT)}


class UnfitServer(BrokerError):
    """A server that must not be used: it evicts keys, or does not run the scripts as required."""


class Look(NamedTuple):
    """The state of one server (one primary of a cluster). `name` is its address in a cluster, else ''.

    `about` is INFO, empty if refused. `fault`: what the scripts lack. `ahead_seconds`: bounds of its clock minus ours.
    """

    name: str
    about: Mapping[str, Any]
    fault: str = ""
    ahead_seconds: tuple[float, float] = (-math.inf, math.inf)


class Finding(NamedTuple):
    """A problem of a server. `id` is that of the system check: workers refuse E and warn of W."""

    id: str
    message: str
    hint: str

    @property
    def level(self) -> str:
        return self.id.partition(".")[2][0]

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


def examine(broker: Broker, logged: set[str]) -> None:
    """Examine the servers; log each warning whose id is not in `logged`, and add it. Raises UnfitServer."""
    found = find_problems(look(broker))
    for finding in found:
        if finding.level == "E":
            raise UnfitServer(str(finding))
    for finding in found:
        if finding.id not in logged and finding.id not in conf.list_silenced_checks():
            logger.warning("%s (%s)", finding, finding.id)
        logged.add(finding.id)


def look(broker: Broker) -> list[Look]:
    """Examine each server: INFO, TIME and one script. Leaves nothing behind; raises what `examine` does."""
    with translated():
        due = {shard: keys.build_keys(broker.config.prefix, shard)["due"] for shard in reversed(broker.list_shards())}
        shards = {_get_name(find_node(broker.client, key)): shard for shard, key in due.items()}
        targets = list_primaries(broker.client)
    return [_look(broker, target, shards.get(_get_name(target))) for target in targets]


def _look(broker: Broker, target: Mapping[str, Any], shard: Shard | None) -> Look:
    name, about = _get_name(target), broker.read_node_info("default", target)
    try:
        fault = "" if shard is None else _find_fault(broker, shard)
        begin = time.time()
        seconds, micros = broker.ask("time", **target)
        end = time.time()
    except BrokerError as error:
        if not is_refusal(error):
            raise
        return Look(name, about, str(error))
    clock = int(seconds) + int(micros) / 1e6
    return Look(name, about, fault, (clock - end, clock - begin))


def _get_name(target: Mapping[str, Any]) -> str:
    return str(target["target_nodes"].name) if target else ""


def _find_fault(broker: Broker, shard: Shard) -> str:
    """Try what the scripts need, on a temporary key. Publishes a hint that workers ignore."""
    words = {
        "KEY": keys.build_keys(broker.config.prefix, shard, "probe")["journal"],
        "CHANNEL": keys.build_wake_channel(broker.config.prefix),
        "N": str(EXACT),
    }
    number, *replies = broker.probe(shard, [[words.get(word, word) for word in line.split()] for line in TRIED])
    names = [line.split()[0] for line in TRIED]
    for name, reply in [("EVAL", [number]), *zip(names, replies, strict=True)]:
        if isinstance(reply, dict) and "err" in reply:
            return f"{name}: {reply['err']}".rstrip(".") + "."
        if name in EXPECTED and reply != [EXPECTED[name]]:
            return f"{name} returns {', '.join(map(str, reply)) or 'nothing'} instead of {EXPECTED[name]}."
    return ""


def find_problems(looks: Iterable[Look]) -> list[Finding]:
    """Return the problems of the servers; each id once, for the first server that has it."""
    found = [finding for each in looks for finding in _find_problems(each)]
    return list({finding.id: finding for finding in reversed(found)}.values())[::-1]


def _find_problems(each: Look) -> Iterator[Finding]:
    kind = "Valkey" if "valkey_version" in each.about else "Redis"
    version = each.about.get("valkey_version", each.about.get("redis_version", ""))
    server = " ".join(part for part in (kind, version, each.name and f"at {each.name}") if part)
    policy = each.about.get("maxmemory_policy")
    if policy is None:
        yield Finding(
            "delayq.W002",
            f"{server} does not report whether it evicts keys.",
            "Let this user run INFO, or check that its maxmemory-policy is noeviction.",
        )
    elif policy != "noeviction":
        yield Finding(
            "delayq.E004",
            f"{server} has maxmemory-policy {policy!r} and would evict schedules.",
            "Set it to noeviction (redis.conf or CONFIG SET maxmemory-policy noeviction), or use another server.",
        )
    if each.fault:
        yield Finding(
            "delayq.E004",
            f"{server} does not run the scripts of django-delayq as it must: {each.fault}",
            "Use Redis 6.2 or later, or Valkey; let this user run EVAL, EVALSHA and the commands of the scripts (ACL), "
            "and do not rename commands.",
        )
    least, most = each.ahead_seconds
    if least > CLOCK_SECONDS or most < -CLOCK_SECONDS:
        off = f"{least:.1f} s ahead of" if least > CLOCK_SECONDS else f"{-most:.1f} s behind"
        yield Finding(
            "delayq.W003",
            f"The clock of {server} is {off} this machine's.",
            "Have both follow NTP: Redis' clock says when something is due, this machine's when an edit takes effect.",
        )
