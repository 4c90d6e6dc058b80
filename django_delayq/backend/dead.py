"""Durable jobs that are dead: revived or deleted by their rows. Needs no Redis: sweeps put what cannot be put now."""

from django.db import IntegrityError, transaction

from .. import ledger, mirror
from ..broker import NewJob
from ..exceptions import UnreadableJob
from ..fields import utcnow
from ..jobs import decode_lines, decode_state, encode, encode_state, revived
from ..models import OPEN_JOBS, Job
from ..timing import from_ms, to_ms
from .outcome import Outcome
from .stored import find_row


def revive(wanted: str) -> Outcome | None:
    """Let a dead durable job wait again, in the caller's transaction; after its commit it is put into Redis.

    It is as it was enqueued, with all its attempts and its unique key, and its result keeps its id; of what has become
    of it before, only its history is left, and nothing where that cannot be read. Returns None where
    no durable job that is dead or open has this id: then Redis has to say what is to be done.
    """
    row = _find(wanted)
    if not isinstance(row, Job):
        return row
    try:
        call, _ = decode_lines(row.member, row.call, "")
    except UnreadableJob:
        return Outcome.UNREADABLE
    using = ledger.database()
    with transaction.atomic(using=using):
        try:
            now = from_ms(to_ms(utcnow()))
            if not ledger.revive_job(row, unique=call.unique, now=now, state=_anew(row)):
                return _changed(wanted)
        except IntegrityError:
            return Outcome.KEY_TAKEN
        entry = NewJob(row.member, 0, row.priority, "", encode(row.queue, row.member, row.call))
        mirror.put_after_commit([(row.queue, entry)], lambda: None, using=using)
    return Outcome.DONE


def _anew(row: Job) -> str:
    try:
        state = revived(decode_state(row.member, row.state))
    except UnreadableJob:
        return ""
    return "" if state is None else encode_state(state)


def delete(wanted: str) -> Outcome | None:
    """Delete the row of a dead durable job, and with it its result. Returns None where `revive` does."""
    row = _find(wanted)
    if not isinstance(row, Job):
        return row
    return Outcome.DONE if ledger.delete_job(row) else _changed(wanted)


def is_dead(wanted: str) -> bool:
    """Say whether this is the id of a durable job that is dead."""
    return isinstance(_find(wanted), Job)


def _find(wanted: str) -> Job | Outcome | None:
    row = find_row(wanted)
    if row is None or (row.died_at is None and row.status not in OPEN_JOBS):
        return None
    return Outcome.NOT_DEAD if row.died_at is None else row


def _changed(wanted: str) -> Outcome:
    """Return what became of a job that is not as it was read any more."""
    return Outcome.GONE if find_row(wanted) is None else Outcome.NOT_DEAD
