"""Keeps the bench's index in step with the database, as the mirror keeps Redis. Holds no rule of its own."""

from typing import Any

from django.db.models.signals import post_save

from .. import conf, ledger, mirror
from ..backend.memory import MemoryJobs
from ..mirror.durable import waiting_pages
from ..mirror.read import read_wanted
from ..models import Schedule
from ..models.primary import heirs
from ..signals import definitions_changed
from .points import MemoryPoints


class Following:
    """From `connect` to `disconnect`, writes of this process are followed at once, all others by `everything`."""

    def __init__(self, points: MemoryPoints, jobs: MemoryJobs) -> None:
        self.points, self.jobs = points, jobs
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
        """Compare all schedules: one may have been rolled back, or written by SQL."""
        self._changed.clear()
        mirror.sync(self.points, Schedule._base_manager.using(ledger.database()).values_list("pk", flat=True))
        self._orders()

    def go_on(self) -> None:
        """Follow what was written since the last call."""
        if self._changed:
            changed, self._changed = self._changed, set()
            mirror.sync(self.points, changed)
        self._orders()

    def _orders(self) -> None:
        mirror.enqueue_runs(self.points, list(ledger.open_apart().order_by("pk")))
        self.durable_jobs()

    def durable_jobs(self) -> None:
        """Put those there that are not: also what a `TestCase`, which never commits, has inserted."""
        for page in waiting_pages():
            for queue, job in (waiting.as_new() for waiting in page):
                self.jobs.enqueue_each([(self.jobs.shard_of(job.member, queue), [job])], {}, again=False)
