"""What people do to jobs by their ids: cancel, run now, revive, delete. Signs only what it found signed.

Works also where this code does not know a job's task or its backend. Where it does, the backend itself is asked.

Note [A result gives way]
The result of a plain job that died may stand in the database, and where one stands none is written. So it is deleted
before the job is revived, and put back where Redis refuses. Cut off in between, nothing is lost but the row: the job
is dead in Redis, with all that the row told.
"""

from collections.abc import Callable
from typing import Any

from .. import ledger
from ..broker import Broker, JobBroker, JobView, Place
from ..compat import TaskResultDoesNotExist, task_backends
from ..exceptions import ForgedJob, JobHeld, UnreadableJob
from ..jobs import Call, Options, State, decode, encode, revived
from ..timing import from_ms, to_ms
from . import dead
from .backend import DelayQBackend, note_cancelled
from .listing import locate
from .outcome import Outcome

__all__ = ["Outcome", "cancel", "delete", "revive", "run_now"]

_REPLIES = {
    "OK": Outcome.DONE,
    "HELD": Outcome.HELD,
    "DEAD": Outcome.DEAD,
    "WAITING": Outcome.NOT_DEAD,
    "TAKEN": Outcome.KEY_TAKEN,
}


def cancel(broker: Broker, wanted: str) -> Outcome:
    """Cancel a job that waits. Where it can be read, its result is then failed, with the error `JobCancelled`.

    Raises:
        BrokerError: Redis does not answer, or with an error. After a `BrokerUnavailable` it may be cancelled or not.
        ForeignLayout: The prefix belongs to another database.
    """
    found = _look(broker, wanted)
    if isinstance(found, Outcome):
        return found
    jobs, place, member, view = found
    if view.died_ms is not None:
        return Outcome.DEAD
    line, call, state = _text(place, member, view)
    told = _by_backend(call, wanted, lambda backend: backend.cancel(wanted))
    if told is not None:
        return told
    text = ""
    if call is not None:
        note_cancelled(state)
        text = encode(place.queue, member, line, state)
    return _told(jobs.change(place, member, "cancel", int(Options().result_ttl * 1000), text))


def run_now(broker: Broker, wanted: str) -> Outcome:
    """Let a job that waits for a time wait for its turn instead. Raises what `cancel` does."""
    found = _look(broker, wanted)
    if isinstance(found, Outcome):
        return found
    jobs, place, member, view = found
    if view.died_ms is not None:
        return Outcome.DEAD
    if " " in view.holder:
        return Outcome.HELD
    now = from_ms(broker.clocks_ms([place])[0])  # by the clock of this process it might have to wait
    if view.waits_until_ms is None or view.waits_until_ms <= to_ms(now):
        return Outcome.READY  # moving it would put it behind all others
    told = _by_backend(_text(place, member, view)[1], wanted, lambda backend: backend.reschedule(wanted, now))
    return _told(jobs.change(place, member, "move", 0)) if told is None else told


def revive(broker: Broker, wanted: str) -> Outcome:
    """Let a dead job start anew, as it was enqueued: with all its attempts, and its unique key. It keeps its history.

    While another job that waits has this key it is refused: that one does the same, and no two of a key shall wait.
    A durable one is revived in the database, in the caller's transaction, with or without Redis. Raises what `cancel`
    does.
    """
    told = dead.revive(wanted)
    if told is not None:
        return told
    found = _look_at_dead(broker, wanted)
    if isinstance(found, Outcome):
        return found
    jobs, place, member, view = found
    line, call, state = _text(place, member, view)
    if call is None:
        return Outcome.UNREADABLE
    result = ledger.take_result(place.queue, member)  # see Note [A result gives way]
    text = encode(place.queue, member, line, revived(state))
    told = _told(jobs.change(place, member, "revive", call.priority, text, unique=call.unique))
    if result is not None and told != Outcome.DONE:
        ledger.store_results([result])
    return told


def delete(broker: Broker, wanted: str) -> Outcome:
    """Forget a dead job, and with it its result. Raises what `cancel` does."""
    told = dead.delete(wanted)
    if told is not None:
        return told
    found = _look_at_dead(broker, wanted)
    if isinstance(found, Outcome):
        return found
    jobs, place, member, _ = found
    told = _told(jobs.change(place, member, "bury"))
    if told == Outcome.DONE:
        ledger.take_result(place.queue, member)
    return told


def _look(broker: Broker, wanted: str) -> Outcome | tuple[JobBroker, Place, str, JobView]:
    found = locate(broker, wanted)
    if found is None:
        return Outcome.GONE
    place, member = found
    jobs = JobBroker(broker)
    view = jobs.view(place, member)
    if not view.payload:
        return Outcome.DEAD if dead.is_dead(wanted) else Outcome.GONE
    return jobs, place, member, view


def _look_at_dead(broker: Broker, wanted: str) -> Outcome | tuple[JobBroker, Place, str, JobView]:
    found = _look(broker, wanted)
    return Outcome.NOT_DEAD if not isinstance(found, Outcome) and found[3].died_ms is None else found


def _text(place: Place, member: str, view: JobView) -> tuple[str, Call | None, State]:
    """Return what `decode` does of a job; no call where it is not of this project, or of a later version."""
    try:
        return decode(place.queue, member, view.payload)
    except (ForgedJob, UnreadableJob):
        return "", None, State()


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


def _told(reply: str) -> Outcome:
    return _REPLIES.get(reply, Outcome.GONE)
