"""Jobs as their rows in the database tell of them, for people to look at. Asks no Redis, changes nothing."""

from collections.abc import Sequence
from dataclasses import replace

from .. import ledger
from ..broker import Place
from ..exceptions import UnreadableJob
from ..jobs import decode_lines, decode_state, parse_id
from ..models import OPEN_JOBS, Job, JobStatus
from ..timing import to_ms
from .seen import Flaw, JobState, SeenJob

#: So many dead jobs of the database are counted.
MOST_COUNTED = 1_000


def find_row(wanted: str) -> Job | None:
    """Return the row of a result's id, None where there is none: of most plain jobs there is none."""
    parsed = parse_id(wanted)
    row = None if parsed is None else ledger.find_job(parsed[1])
    return row if row is not None and parsed is not None and row.queue == parsed[0] else None


def tells_all(row: Job) -> bool:
    """Say whether nothing that Redis holds could tell more: of a plain job that failed it may hold a dead one."""
    return row.died_at is not None or row.status == JobStatus.SUCCESSFUL


def seen_row(row: Job) -> SeenJob:
    """Return a job as its row tells of it. One that is open waits, as far as the database knows."""
    if row.died_at is not None:
        state, at = JobState.DEAD, row.died_at
    elif row.status in OPEN_JOBS:
        state, at = JobState.WAITING, row.wakes_at
    else:
        state, at = JobState.ENDED, row.finished_at
    seen = SeenJob(
        Place(row.queue, 0), row.member, state, None if at is None else to_ms(at), len(row.call) + len(row.state),
        in_database=True,
    )  # fmt: skip
    return _read(seen, row.call, row.state)


def with_states(jobs: Sequence[SeenJob]) -> list[SeenJob]:
    """Return jobs that were seen in Redis with what their rows say has become of them: Redis does not know that.

    One query, and none where no durable job is among them.
    """
    members = [seen.member for seen in jobs if seen.call is not None and seen.call.durable]
    rows = ledger.load_jobs(members)
    return [_with_state(seen, rows[seen.member].state) if seen.member in rows else seen for seen in jobs]


def _with_state(seen: SeenJob, state: str) -> SeenJob:
    try:
        return replace(seen, record=decode_state(seen.member, state))
    except UnreadableJob:
        return seen


def _read(seen: SeenJob, line: str, state: str) -> SeenJob:
    try:
        call, record = decode_lines(seen.member, line, state)
    except UnreadableJob:
        return replace(seen, flaw=Flaw.UNREADABLE)
    return replace(seen, call=call, record=record)
