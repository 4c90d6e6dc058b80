"""Pause and limit what the workers of a queue, or of a task, do: for code; people use the admin or `delayq_control`.

A change is a row of the database. Every worker follows it within a second, also one that starts later, and whatever
becomes of Redis.
"""

from datetime import datetime
from typing import Any

from django.db import transaction

from . import ledger
from .models import Control
from .models.fields import utcnow

Kind = Control.Kind


def pause(queue: str = "", *, task: str = "", reason: str = "", until: datetime | None = None, by: str = "") -> Control:
    """Start nothing of a queue, or of a task, from a second after the commit on; what runs goes on.

    Nothing is lost: jobs wait, and of the due points that are late by the end of it `missed` decides. `until`, an aware
    datetime, ends it; else `resume` does. `by` says who did it.

    Raises:
        django.core.exceptions.ValidationError: There is no such queue or task, or `until` has passed.
    """
    return _change(queue, task, by, paused=True, reason=reason, until=until)


def resume(queue: str = "", *, task: str = "", by: str = "") -> Control:
    """Let a queue, or a task, go on: within a second of the commit, an entry of a task within some seconds.

    Raises: See `pause`.
    """
    return _change(queue, task, by, paused=False, reason="", until=None)


def limit(queue: str, most: int | None, *, by: str = "") -> Control:
    """Let no more than `most` due points and jobs of a queue run at a time, None for any number.

    In a queue of one shard that holds exactly, whatever is killed: whose lease has not ended counts. In several each
    shard has its part of it, rounded down, but at least one: so fewer may run than might, and never more than the
    greater of `most` and the number of shards. Claims on the way when it is lowered still count by what was before.

    Raises: See `pause`.
    """
    return _change(queue, "", by, most=most)


def _change(queue: str, task: str, by: str, **values: Any) -> Control:
    if bool(queue) is bool(task):
        raise TypeError("Name a queue or a task: pause('mail') or pause(task='app.tasks.send').")
    using = ledger.database()
    with transaction.atomic(using=using):
        kind, name = (Kind.QUEUE, queue) if queue else (Kind.TASK, task)
        rows = Control.objects.using(using).select_for_update()
        row = rows.filter(kind=kind, name=name).first() or Control(kind=kind, name=name)
        for field, value in {**values, "changed_by": by[:200], "changed_at": utcnow()}.items():
            setattr(row, field, value)
        row.full_clean(exclude=["changed_at"])
        row.save(using=using)
    return row
