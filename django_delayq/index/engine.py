"""The servers' INFO, TIME and the result of a trial script. Collects facts; judges nothing."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis import exceptions as errors

from ..exceptions import BrokerError, BrokerUnavailable
from . import keys
from .cluster import node_of, primaries
from .connection import translated
from .keys import Trial

if TYPE_CHECKING:
    from .broker import Broker

#: Seconds to wait before a clock that shows the same microsecond twice is read again.
MOVE_SECONDS = 0.02
#: Error of a server that cannot write to its disk: a passing state, not unfitness.
NOT_NOW = "MISCONF"


@dataclass(frozen=True, slots=True)
class Look:
    """The state of one server (one primary of a cluster). `name` is its address in a cluster, else ''.

    `about` is INFO, empty if refused. `ahead_seconds`: bounds of its clock minus this machine's, given the duration of
    the round trip. `clock_us`: TIME just before and after the trial. `trial` is None if the server has no shard of
    ours. `refusal` is the error that prevented the trial.
    """

    name: str
    about: Mapping[str, Any]
    ahead_seconds: tuple[float, float] = (-math.inf, math.inf)
    clock_us: tuple[int, int] = (0, 0)
    trial: Trial | None = None
    refusal: str = ""


def info_of(broker: "Broker", section: str, target: Mapping[str, Any]) -> dict[str, Any]:
    """Return one section of a server's INFO; empty if the server refuses it.

    Raises:
        BrokerUnavailable: It does not answer.
        BrokerError: It refuses the login.
    """
    try:
        return dict(broker.ask("info", section, **target))
    except BrokerError as error:
        if not _is_refusal(error):
            raise
        return {}


def run_ids(abouts: Iterable[Mapping[str, Any]]) -> str:
    """Return the run ids in these INFOs as one text, '' if there is none."""
    return " ".join(sorted(str(about["run_id"]) for about in abouts if about.get("run_id")))


def look(broker: "Broker") -> list[Look]:
    """Examine each server: INFO, TIME twice and one script. Leaves nothing behind.

    Raises:
        BrokerUnavailable: A server does not answer.
        BrokerError: The login is refused, or a server cannot write to its disk.
    """
    with translated():
        due = {shard: keys.shard_keys(broker.config.prefix, shard)[0] for shard in reversed(broker.shards())}
        shards = {_name(node_of(broker.client, key)): shard for shard, key in due.items()}
    return [_look(broker, target, shards.get(_name(target))) for target in primaries(broker.client)]


def _look(broker: "Broker", target: Mapping[str, Any], shard: keys.Shard | None) -> Look:
    name, about = _name(target), info_of(broker, "default", target)
    try:
        before_us, before = _clock(broker, target)
        trial = None if shard is None else broker.probe(shard)
        after_us, after = _clock(broker, target)
        if after_us == before_us:
            time.sleep(MOVE_SECONDS)
            after_us, after = _clock(broker, target)
    except BrokerError as error:
        if not _is_refusal(error):
            raise
        return Look(name, about, refusal=str(error))
    both = max(before[0], after[0]), min(before[1], after[1])
    # If the samples contradict each other, a clock was stepped between them: the later one counts.
    return Look(name, about, both if both[0] <= both[1] else after, (before_us, after_us), trial)


def _is_refusal(error: BrokerError) -> bool:
    """Return whether the server answers, but refuses permanently."""
    passing = isinstance(error, BrokerUnavailable) or NOT_NOW in str(error)
    return isinstance(error.__cause__, errors.ResponseError) and not passing


def _clock(broker: "Broker", target: Mapping[str, Any]) -> tuple[int, tuple[float, float]]:
    """Return the server's clock in µs, and (minimum, maximum) seconds by which it is ahead of this machine's."""
    begin = time.time()
    seconds, micros = broker.ask("time", **target)
    end = time.time()
    clock_us = int(seconds) * 1_000_000 + int(micros)
    return clock_us, (clock_us / 1e6 - end, clock_us / 1e6 - begin)


def _name(target: Mapping[str, Any]) -> str:
    return str(target["target_nodes"].name) if target else ""
