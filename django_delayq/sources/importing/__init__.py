"""Imports from other schedulers: a function per origin yields `ImportedEntry` values. Unpickles nothing itself."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import apscheduler, celery, crontab, export, registries, tables
from .entry import ImportedEntry, ReadOptions
from .export import export_schedules
from .plan import Choices, ImportStep, enable, take_over

__all__ = [
    "ORIGINS", "Choices", "ImportStep", "ImportedEntry", "ReadOptions", "enable", "export_schedules", "take_over",
]  # fmt: skip


class ImportOrigin(NamedTuple):
    """Another scheduler. `read` yields all its entries; `source` says what to read, empty if these are its tables."""

    read: Callable[[str, ReadOptions], Iterator[ImportedEntry]]
    source: str = ""


#: Origins by their names in the command.
ORIGINS = {
    "crontab": ImportOrigin(crontab.read, "a file, or - for what `crontab -l` prints"),
    "celery": ImportOrigin(
        celery.read_app, "the dotted path to the Celery app, or to a dict such as its beat_schedule"
    ),
    "django-celery-beat": ImportOrigin(celery.read_tables),
    "django-q2": ImportOrigin(tables.read_django_q2),
    "rq-scheduler": ImportOrigin(
        registries.read_rq_scheduler, "the dotted path to a Scheduler, or to a function that returns one"
    ),
    "apscheduler": ImportOrigin(apscheduler.read, "the dotted path to a scheduler, or to a function that returns one"),
    "django-tasks-scheduler": ImportOrigin(tables.read_django_tasks_scheduler),
    "huey": ImportOrigin(registries.read_huey, "the dotted path to the Huey instance"),
    "procrastinate": ImportOrigin(registries.read_procrastinate, "the dotted path to the App"),
    "json": ImportOrigin(export.read, "a file that delayq_export wrote, or -"),
}
