"""What people do to jobs by their ids: cancel, stop, run now, revive, delete.

Works also where this code does not know a job's task or its backend. Where it does, the backend itself is asked.
"""

from collections.abc import Callable
from typing import Any

from ..broker import Broker
from ..compat import TaskResultDoesNotExist, task_backends
from ..exceptions import JobHeld
from ..jobs import Call, Options
from ..models.cancellation import Cancellation, job_key
from ..timing import from_ms, to_ms
from .backend import DelayQBackend
from .in_database import DatabaseStore
from .in_redis import RedisStore
from .store import JobState, Outcome, SeenJob, Store

__all__ = ["Outcome", "cancel", "delete", "delete_row", "revive", "revive_row", "run_now", "stop"]

_ROWS = DatabaseStore()


def cancel(broker: Broker, wanted: str) -> Outcome:
    """Cancel a job that waits. Where it can be read, its result is then failed, with the error `JobCancelled`.

    Raises:
        BrokerError: Redis does not answer, or with an error. After a `BrokerUnavailable` it may be cancelled or not.
        ForeignLayout: The prefix belongs to another database.
    """
    store = RedisStore(broker)
    seen = _look(store, wanted)
    if isinstance(seen, Outcome):
        return seen
    outcome = _by_backend(seen.call, wanted, lambda backend: backend.cancel(wanted))
    return store.cancel(seen, int(Options().result_ttl * 1000)) if outcome is None else outcome


def stop(broker: Broker, wanted: str, by: str = "") -> Outcome:
    """Ask for the execution of a job that a worker holds to be stopped: see `DelayQBackend.cancel`, `running` and `by`.

    Raises what `cancel` does.
    """
    seen = _look(RedisStore(broker), wanted)
    if isinstance(seen, Outcome):
        return seen
    if seen.state != JobState.RUNNING:
        return Outcome.WAITING
    Cancellation.objects.ask(job_key(wanted), by)
    return Outcome.DONE


def run_now(broker: Broker, wanted: str) -> Outcome:
    """Let a job that waits for a time wait for its turn instead. Raises what `cancel` does."""
    store = RedisStore(broker)
    seen = _look(store, wanted)
    if isinstance(seen, Outcome):
        return seen
    if seen.state == JobState.RUNNING:
        return Outcome.HELD
    now = from_ms(broker.clocks_ms([seen.shard])[0])  # by the clock of this process it might have to wait
    if seen.state == JobState.READY or seen.at_ms is None or seen.at_ms <= to_ms(now):
        return Outcome.READY  # moving it would put it behind all others
    outcome = _by_backend(seen.call, wanted, lambda backend: backend.reschedule(wanted, now))
    return store.move(seen, 0) if outcome is None else outcome


def revive(broker: Broker, wanted: str) -> Outcome:
    """Let a dead job start anew, as it was enqueued: with all its attempts, and its unique key. It keeps its history.

    While another job that waits has this key it is refused: that one does the same, and no two of a key shall wait.
    A durable one is revived in the database, in the caller's transaction, with or without Redis. Raises what `cancel`
    does.
    """
    redis = RedisStore(broker)
    return revive_row(wanted) or _to_dead(redis, redis.revive, wanted) or Outcome.GONE


def delete(broker: Broker, wanted: str) -> Outcome:
    """Forget a dead job, and with it its result. Raises what `cancel` does."""
    redis = RedisStore(broker)
    return delete_row(wanted) or _to_dead(redis, redis.delete, wanted) or Outcome.GONE


def revive_row(wanted: str) -> Outcome | None:
    """Do as `revive` does, by the row and without Redis. None where that is not for the database to say."""
    return _to_dead(_ROWS, _ROWS.revive, wanted)


def delete_row(wanted: str) -> Outcome | None:
    """Do as `delete` does, by the row; see `revive_row`."""
    return _to_dead(_ROWS, _ROWS.delete, wanted)


def _to_dead(store: Store, order: Callable[[SeenJob], Outcome], wanted: str) -> Outcome | None:
    """Give an order to a store that has the job, if it is dead there. None where it has none."""
    seen = _find(store, wanted)
    if seen is None:
        return None
    return order(seen) if seen.state == JobState.DEAD else Outcome.NOT_DEAD


def _find(store: Store, wanted: str) -> SeenJob | None:
    """Return a job that has not ended, or is dead. One without a text is none."""
    seen = store.find(wanted)
    return seen if seen is not None and seen.size and seen.state != JobState.ENDED else None


def _look(store: RedisStore, wanted: str) -> SeenJob | Outcome:
    """Return a job that waits or runs in Redis, or what else became of it."""
    seen = _find(store, wanted)
    if seen is not None and seen.state != JobState.DEAD:
        return seen
    stored = seen or _find(_ROWS, wanted)
    return Outcome.DEAD if stored is not None and stored.state == JobState.DEAD else Outcome.GONE


def _by_backend(call: Call | None, wanted: str, order: Callable[[DelayQBackend], bool]) -> Outcome | None:
    """Let a job's own backend do it; None where this process has none that knows it."""
    try:
        backend: Any = None if call is None else task_backends[call.backend]
    except Exception:  # no such alias here, or its settings are wrong, which the checks report
        return None
    if not isinstance(backend, DelayQBackend):
        return None
    try:
        return Outcome.DONE if order(backend) else Outcome.GONE
    except JobHeld:
        return Outcome.HELD
    except TaskResultDoesNotExist:
        return None
