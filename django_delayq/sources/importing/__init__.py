"""Imports from other schedulers: a function per origin yields `Entry` values. Unpickles nothing itself."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import apscheduler, celery, crontab, export, registries, tables
from .entry import Entry, Options
from .export import export_schedules
from .plan import Choices, Step, enable, take_over

__all__ = ["ORIGINS", "Choices", "Entry", "Options", "Step", "enable", "export_schedules", "take_over"]


class Origin(NamedTuple):
    """Another scheduler. `read` yields all its entries; `source` says what to read, empty if these are its tables."""

    read: Callable[[str, Options], Iterator[Entry]]
    source: str = ""


#: Origins by their names in the command.
ORIGINS = {
    "crontab": Origin(crontab.read, "a file, or - for what `crontab -l` prints"),
    "celery": Origin(celery.read_app, "the dotted path to the Celery app, or to a dict such as its beat_schedule"),
    "django-celery-beat": Origin(celery.read_tables),
    "django-q2": Origin(tables.read_django_q2),
    "rq-scheduler": Origin(
        registries.read_rq_scheduler, "the dotted path to a Scheduler, or to a function that returns one"
    ),
    "apscheduler": Origin(apscheduler.read, "the dotted path to a scheduler, or to a function that returns one"),
    "django-tasks-scheduler": Origin(tables.read_django_tasks_scheduler),
    "huey": Origin(registries.read_huey, "the dotted path to the Huey instance"),
    "procrastinate": Origin(registries.read_procrastinate, "the dotted path to the App"),
    "json": Origin(export.read, "a file that delayq_export wrote, or -"),
}
