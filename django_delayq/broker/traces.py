"""In which trace a schedule was saved last, or a run ordered: in Redis, for a while. See `tracing.py`.

Only traces are lost where it is: no script and no rebuild knows of it.
"""

import json
from collections.abc import Iterable, Mapping
from operator import methodcaller

from . import keys
from .broker import Broker
from .scripts import text

#: What was saved longer ago has no trace any more.
KEPT_SECONDS = 7 * 24 * 3600


def note_trace(broker: Broker, members: Iterable[tuple[str, str]], carried: Mapping[str, str]) -> None:
    """Note for these (member, queue) in which trace they come from, in one round trip.

    Raises:
        BrokerError: Some may be noted.
    """
    value = json.dumps(carried)
    names = [_name(broker, member, queue) for member, queue in members]
    broker.ask_all([methodcaller("set", name, value, ex=KEPT_SECONDS) for name in names])


def read_trace(broker: Broker, member: str, queue: str) -> dict[str, str]:
    """Return what was noted of a member; empty where nothing is, or nothing that can be read.

    Raises:
        BrokerError: Redis does not answer, or with an error.
    """
    found = broker.ask("get", _name(broker, member, queue))
    try:
        carried = json.loads(text(found or "{}"))
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in carried.items() if isinstance(value, str)} if type(carried) is dict else {}


def _name(broker: Broker, member: str, queue: str) -> str:
    return keys.trace_key(broker.config.prefix, broker.shard_of(member, queue), member)
