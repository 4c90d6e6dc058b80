"""Former definitions of schedules: what each edit replaced, who made it, and how to restore it.

Note [Edits keep definitions]
`Schedule.save()`, and `update()` of up to MOST_AT_ONCE rows, keep the definition that they replace, in the transaction
of the edit. `update()` of more rows, which would take many times as long, `bulk_create` over existing rows, `loaddata`
and SQL keep nothing: see `is_followed_by`. Consecutive definitions with equal values become one row.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import OuterRef, Subquery

from ..recurrence.point import utcnow
from .columns import UTCDateTimeField, from_json, get_values, to_json
from .definition import AbstractSchedule
from .primary import PrimaryModel, PrimaryQuerySet

#: Maximum former definitions per schedule; older ones are deleted.
KEPT = 50
#: Maximum rows of an `update()` that keeps definitions.
MOST_AT_ONCE = 100
#: Fields that say whether a schedule runs. `restore` leaves them: pausing and resuming are separate actions.
SWITCH_FIELDS = ("enabled", "pause_reason")


class DefinitionQuerySet(PrimaryQuerySet["Definition"]):
    def keep(self, replaced: Sequence[AbstractSchedule], followed_by: Mapping[int, int], by: str = "") -> None:
        """Keep these rows, as read before the edit. `followed_by`: their generations after it, by primary key."""
        values = {row.pk: to_json(get_values(row)) for row in replaced}
        rows, since = self.filter(schedule__in=list(values)), {row.pk: row.generation for row in replaced}
        same = [
            row for row in rows.filter(followed_by__in=list(since.values()))
            if row.followed_by == since[row.schedule_id] and row.values == values[row.schedule_id]
        ]  # fmt: skip
        since |= {row.schedule_id: row.since for row in same}
        self.bulk_create(
            Definition(
                schedule_id=row.pk, since=since[row.pk], generation=row.generation, followed_by=followed_by[row.pk],
                by=by[:200], values=values[row.pk],
            )
            for row in replaced if row.pk in followed_by
        )  # fmt: skip
        oldest = self.filter(schedule=OuterRef("schedule")).order_by("-generation").values("generation")[KEPT:]
        beyond = rows.filter(generation__lte=Subquery(oldest[:1])).values_list("pk", flat=True)
        if gone := [*(row.pk for row in same), *beyond]:
            self.filter(pk__in=gone).delete()

    def find_generation(self, schedule: int, generation: int) -> "Definition | None":
        """Return the definition of a schedule in this generation, None if it was not kept."""
        return self.filter(schedule=schedule, since__lte=generation, generation__gte=generation).order_by("-pk").first()


class Definition(PrimaryModel):
    """A schedule from generation `since` to `generation`, replaced by `by`, a user. Note [Edits keep definitions]."""

    schedule = models.ForeignKey(
        "django_delayq.Schedule",
        # `lock_to_delete` deletes them with the schedule; rows that SQL leaves behind do no harm.
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="definitions",
    )
    if TYPE_CHECKING:
        schedule_id: int
    since = models.BigIntegerField()
    generation = models.BigIntegerField()
    followed_by = models.BigIntegerField()
    replaced_at = UTCDateTimeField(default=utcnow)
    by = models.CharField(max_length=200, blank=True)
    values = models.JSONField(default=dict)

    objects = DefinitionQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        verbose_name = "former definition"
        verbose_name_plural = "former definitions"
        indexes = (
            models.Index(fields=("schedule", "generation"), name="delayq_definition_of"),
            models.Index(fields=("by", "id"), name="delayq_definition_by"),
        )

    def __str__(self) -> str:
        return f"schedule {self.schedule_id} up to generation {self.generation}"

    def is_followed_by(self, other: "Definition | AbstractSchedule | None") -> bool:
        """Return whether `other` came directly after this definition, without an unkept edit in between."""
        if isinstance(other, Definition):
            return self.followed_by == other.since
        return other is not None and self.followed_by == other.generation

    def restore(self, *, by: str = "") -> bool:
        """Restore all but the pause; False if nothing changes. Raises ValidationError if a value is no longer valid."""
        using: str | None = self._state.db
        model: Any = self._meta.get_field("schedule").related_model
        with transaction.atomic(using=using):
            rows = model._base_manager.using(using).select_for_update()
            row: AbstractSchedule | None = rows.filter(pk=self.schedule_id).first()
            if row is None:
                return False
            current, then = get_values(row), from_json(self.values)
            changed = [name for name in then if name not in SWITCH_FIELDS and then[name] != current[name]]
            for name in changed:
                setattr(row, name, then[name])
            if changed:
                row.full_clean()
                row.changed_by = by
                row.save(using=row._state.db, update_fields=changed)
            return bool(changed)
