"""System checks of the schedules that the code declares. Looks at the code only; opens no connection."""

from typing import Any

from django.core import checks
from django.core.exceptions import ValidationError

from . import declared
from .declared.sync import said
from .declared.values import declared_schedule
from .decorators import Declared
from .fields import utcnow


def connect() -> None:
    """Register every check once."""
    checks.register(check_declared, "delayq")


def check_declared(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that each declared schedule can be saved, is the only one of its key and name, and is found everywhere."""
    try:
        found = declared.collect()
    except Exception:  # the settings are wrong or a module cannot be imported: other checks say it
        return []
    return [*map(_twice, found.twice), *filter(None, map(_invalid, found.declared)), *map(_outside, found.outside)]


def _invalid(each: Declared) -> checks.CheckMessage | None:
    try:
        schedule = declared_schedule(each)
        if schedule.at is None or schedule.at > utcnow():  # whether one that has passed is known, the database says
            schedule.clean()
    except ValidationError as error:
        message = f"The schedule {each.values['name']!r}, declared in {each.module}, cannot be saved: {said(error)}"
        return checks.Error(message, hint=f"Correct @periodic of {each.task}.", id="delayq.E030")
    return None


def _twice(each: Declared) -> checks.CheckMessage:
    message = f"The key {each.key!r} or name {each.values['name']!r}, declared in {each.module}, is declared twice."
    return checks.Error(message, hint="Give each @periodic a name of its own: name='…'.", id="delayq.E031")


def _outside(each: Declared) -> checks.CheckMessage:
    message = f"The schedule {each.values['name']!r} of {each.task} is not synced: it is declared in {each.module}."
    hint = (
        "Have it beside a task that a module of DELAYQ['TASK_MODULES'] offers, or in such a module: others are not "
        "imported by every process."
    )
    return checks.Warning(message, hint=hint, id="delayq.W030")
