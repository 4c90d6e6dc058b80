"""Lists the origins. Each is a module with `read(source, options)`, which yields entries, and `DIFFERS`."""

from collections.abc import Iterator
from importlib import import_module
from typing import Protocol

from .entry import Entry, Options

#: By name in the command: the module of the origin, and the meaning of SOURCE.
ORIGINS = {
    "crontab": ("crontab", "a file, or - for what `crontab -l` prints"),
    "celery": ("celery_beat", "the dotted path to the Celery app, or to a dict such as its beat_schedule"),
    "django-celery-beat": ("django_celery_beat", ""),
    "django-q2": ("django_q2", ""),
    "rq-scheduler": ("rq_scheduler", "the dotted path to a Scheduler, or to a function that returns one"),
    "apscheduler": ("apscheduler", "the dotted path to a scheduler, or to a function that returns one"),
    "django-tasks-scheduler": ("django_tasks_scheduler", ""),
    "huey": ("huey", "the dotted path to the Huey instance"),
    "procrastinate": ("procrastinate", "the dotted path to the App"),
    "json": ("export", "a file that delayq_export wrote, or -"),
}


class Origin(Protocol):
    """A module of an origin. `DIFFERS` lists differences in meaning that concern all of its entries."""

    DIFFERS: tuple[str, ...]

    @staticmethod
    def read(source: str, options: Options) -> Iterator[Entry]:
        """Yield every entry, including those that cannot be imported.

        Raises:
            UnreadableSource: There is nothing to read.
        """


def origin(name: str) -> Origin:
    """Return the module of an origin."""
    found: Origin = import_module(f".{ORIGINS[name][0]}", __package__)  # type: ignore[assignment]
    return found
