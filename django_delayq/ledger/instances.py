"""Instances of the models, for whoever else's code gets a row: signals' receivers, and tasks that take the context."""

from typing import TypeVar

from django.db.models import Model

from ..models import Run, Schedule, ScheduleState
from ..rows import RunRow, ScheduleRow, StateRow
from .bulk import database
from .reading import DEFINITION, RUN, STATE

Instance = TypeVar("Instance", bound=Model)


def as_schedule(row: ScheduleRow) -> Schedule:
    """Return the definition and its state as they were read; what was not read of it is read when it is asked for."""
    schedule = _instance(Schedule, DEFINITION, row)
    if row.state.stored:
        schedule.state = _instance(ScheduleState, STATE, row.state)
    return schedule


def as_run(row: RunRow) -> Run:
    """Return the run as it stands, perhaps not yet saved."""
    run = _instance(Run, RUN, row)
    if not row.pk:
        run.pk, run._state.adding = None, True
    return run


def _instance(model: type[Instance], names: tuple[str, ...], row: RunRow | ScheduleRow | StateRow) -> Instance:
    attnames = {"id" if name == "pk" else name: name for name in names}
    in_order = [field.attname for field in model._meta.concrete_fields if field.attname in attnames]
    return model.from_db(database(), in_order, [getattr(row, attnames[name]) for name in in_order])
