"""Brings schedules that the code declares into the database. Redis follows as after every other save.

Note [Whose field]
The code owns every field but the switch (`enabled` and its reason), which it gives a new schedule only; people own that
and the tags. A sync writes what the code says over whatever stands there, and the admin lets nobody edit it.

Note [Who syncs]
Only `delayq_sync`, and `migrate` where SYNC_AFTER_MIGRATE asks for it: never a worker, a web process or an import.
During a deploy old and new code run side by side; if each wrote what it declares, the schedules would change to and fro
with every start of a process, and every change of a recurrence begins it anew.
"""

from typing import Any

from django.apps import apps
from django.db.models.signals import post_migrate

from ... import conf
from .collect import collect
from .sync import sync, sync_after_migrate

__all__ = ["collect", "connect", "sync", "sync_after_migrate"]


def connect() -> None:
    """Have `migrate` sync, where SYNC_AFTER_MIGRATE asks for it."""
    app = apps.get_app_config("django_delayq")
    post_migrate.connect(_migrated, sender=app, dispatch_uid="django_delayq.migrated")


def _migrated(using: str, verbosity: int, stdout: Any = None, **kwargs: Any) -> None:
    if conf.get_config().sync_after_migrate and conf.mirrors():
        say = stdout.write if stdout is not None and verbosity else lambda line: None
        sync_after_migrate(using, say=say)
