"""Keeps the bench's index in sync with the database, as the mirror does for Redis. Has no rules of its own."""

from typing import Any

from django.db.models.signals import post_save

from .. import conf, ledger, sync
from ..models import Schedule
from ..models.primary import heirs
from ..recurrence import to_ms
from ..signals import definitions_changed
from ..sync import PAGE
from ..sync.read import read_wanted
from .index import MemoryIndex


class Following:
    """Tracks writes of this process from `connect` to `disconnect`; `everything` finds all others."""

    def __init__(self, index: MemoryIndex) -> None:
        self.index = index
        self._changed: set[int] = set()

    def connect(self) -> None:
        for model in heirs(Schedule):
            post_save.connect(self._saved, sender=model)
        definitions_changed.connect(self._written, sender=Schedule)

    def disconnect(self) -> None:
        for model in heirs(Schedule):
            post_save.disconnect(self._saved, sender=model)
        definitions_changed.disconnect(self._written, sender=Schedule)

    def _saved(self, instance: Schedule, **kwargs: Any) -> None:
        self._written([instance.pk])

    def _written(self, pks: list[int], **kwargs: Any) -> None:
        if not conf.mirrors():
            read_wanted(pks)  # within the transaction, as the mirror does
        self._changed.update(pks)

    def everything(self) -> None:
        """Compare all schedules: an edit may have been rolled back, or made by SQL."""
        self._changed.clear()
        sync.sync(self.index, Schedule._base_manager.using(ledger.database()).values_list("pk", flat=True))
        self._rows()

    def go_on(self) -> None:
        """Apply the writes since the last call."""
        if self._changed:
            changed, self._changed = self._changed, set()
            sync.sync(self.index, changed)
        self._rows()

    def _rows(self) -> None:
        """Add missing runs and jobs, and move jobs that were moved: a `TestCase` never commits."""
        for page in ledger.open_pages(PAGE):
            sync.put_runs(self.index, page)
            for run in page:
                if self.index.point_ms(run) not in (None, to_ms(run.due_at)) and run.is_job:
                    sync.move_run(self.index, run, run.due_at)
