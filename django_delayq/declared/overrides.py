"""Where a schedule differs from what the code last declared, and the way back."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.utils.translation import gettext as _

from ..models import Declaration, Schedule
from ..models.kept import write
from .values import FIELDS, RECURRENCE, differing, from_json, shown, values_for, values_of


@dataclass(frozen=True, slots=True)
class Override:
    """A field that a person changed, in words: what it is here and in the code. Secrets are hidden."""

    label: str
    here: str
    code: str


def declaration_of(schedule: Schedule) -> Declaration | None:
    """Return what the code last declared of a schedule, None where it was made by hand."""
    try:
        return schedule.declaration
    except Declaration.DoesNotExist:
        return None


def overrides(schedule: Schedule, duration: Callable[[timedelta], str] = str) -> list[Override]:
    """Return what a person changed; nothing for what was made by hand, or is gone from the code."""
    declaration = declaration_of(schedule)
    if declaration is None or declaration.gone_at is not None:
        return []
    declared, current = from_json(declaration.values), values_of(schedule)
    return [
        Override(
            _("recurrence") if unit is RECURRENCE else str(FIELDS[unit.name].verbose_name),
            shown(unit, current, duration),
            shown(unit, declared, duration),
        )
        for unit in differing(current, declared)
    ]


def reset(schedule: Schedule, by: str = "") -> bool:
    """Set every field to what the code last declared; False where there was nothing to set. `by` says who did it.

    Raises:
        ValidationError: That cannot be saved any more, such as a time that has passed.
    """
    using = schedule._state.db
    with transaction.atomic(using=using):
        rows = Declaration._base_manager.using(using).select_for_update()
        declaration = rows.filter(pk=schedule.pk, gone_at=None).first()
        row = Schedule._base_manager.using(using).select_for_update().filter(pk=schedule.pk).first()
        if declaration is None or row is None:
            return False
        declared = from_json(declaration.values)
        return write(row, values_for(differing(values_of(row), declared), declared), by)
