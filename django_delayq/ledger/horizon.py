"""Up to where a schedule's history was pruned, and what is refused for it.

Note [What was pruned is decided]
The unique row of a due point is what lets it be recorded once (`recording.py`). A row that was pruned can refuse nobody
any more: a worker that stood still for days and then records, or somebody who backfills once more. So the deletion
raises `ScheduleState.pruned_until` to the last point that it takes away, in the same transaction and with the state
locked; and whatever would be inserted at or before that point is lost, as if its row still stood. Whoever records has
locked and read the state anyway. A `running` row moves no state and locks none, so it is inserted first, and taken back
where the state then says that its point was pruned, or the schedule is gone, whose rows are pruned without a note: an
insertion waits for a deletion of the same point, and what is read after it sees what that has noted.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from ..models import Origin, Run, Schedule, ScheduleState, Status
from ..models.locks import locked
from ..rows import RunRow, StateRow


def is_pruned(run: RunRow, states: Mapping[int, StateRow]) -> bool:
    """Say whether the row of a point of the chain may have been there and was pruned."""
    state = states.get(run.schedule_id or 0)
    return state is not None and run.origin == Origin.DUE and _reaches(state.pruned_until, run)


def take_back_pruned(inserted: Iterable[RunRow], states: Mapping[int, StateRow], using: str) -> set[int]:
    """Delete those of these new rows whose points were pruned; return their keys. In the transaction of the insertion.

    Only `running` ones are looked at whose states are not locked. See Note [What was pruned is decided].
    """
    rows = [run for run in inserted if run.status == Status.RUNNING and run.schedule_id not in states]
    if not rows:
        return set()
    schedules = Schedule._base_manager.using(using).filter(pk__in={run.schedule_id for run in rows})
    horizons = dict(schedules.values_list("pk", "state__pruned_until"))
    pruned = {run.pk for run in rows if run.schedule_id not in horizons or _reaches(horizons[run.schedule_id], run)}
    if pruned:
        Run._base_manager.using(using).filter(pk__in=pruned).delete()
    return pruned


def lock_horizon(schedule_pk: int, using: str) -> datetime | None:
    """Return up to where a schedule's history is pruned, and see that it stays so until the end of the transaction."""
    states = locked(ScheduleState._base_manager.using(using).filter(pk=schedule_pk))
    return states.values_list("pruned_until", flat=True).first()


def _reaches(horizon: datetime | None, run: RunRow) -> bool:
    return horizon is not None and run.due_at <= horizon
