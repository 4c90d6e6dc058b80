"""Deletions and moves that Redis has yet to follow. Written in the deleting transaction, removed by the delta sweep."""

from collections.abc import Iterable

from django.db import models

from ..recurrence.point import utcnow
from .fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet
from .versions import now_generation


class Tombstone(PrimaryModel):
    """The member of a deleted schedule, or that of a moved one in its old queue, which must leave Redis."""

    member = models.CharField(max_length=64)
    queue = models.CharField(max_length=64)
    generation = models.BigIntegerField()
    created_at = UTCDateTimeField(default=utcnow)

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.member} in {self.queue}"

    @classmethod
    def add(cls, entries: Iterable[tuple[int, str, int]], *, using: str) -> None:
        """Record (schedule pk, queue, generation) as gone, in the current transaction."""
        cls._base_manager.using(using).bulk_create(
            [
                cls(member=f"s{pk}", queue=queue, generation=max(generation + 1, now_generation()))
                for pk, queue, generation in entries
            ]
        )
