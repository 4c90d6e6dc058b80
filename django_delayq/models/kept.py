"""Definitions of schedules as they were before an edit: who replaced which, and the way back.

Note [What is kept]
`Schedule.save()` keeps what it replaces, and so do `pause()`, `resume()`, the admin, syncs of declared schedules,
imports, and `update()` of up to MOST_AT_ONCE rows, each in the transaction of the edit. `update()` of more rows,
`bulk_create` over rows that are there, `loaddata` and SQL keep nothing: an `update()` of 10,000 rows would take six
times as long on PostgreSQL, thirty times on SQLite. So one definition need not end where the next one begins;
`is_followed_by` tells.

Versions that follow each other and are the same, such as those of a program that saves what is there, become one row.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import OuterRef, Subquery

from ..recurrence.point import utcnow
from .fields import UTCDateTimeField, from_json, to_json, values_of
from .primary import PrimaryModel, PrimaryQuerySet

if TYPE_CHECKING:
    from .schedule import Schedule

#: So many definitions are kept of each schedule, the newest.
KEPT = 50
#: Of a write of more rows nothing is kept.
MOST_AT_ONCE = 100
#: What says whether a schedule runs. It is not restored: pausing and resuming are acts of their own.
SWITCH_FIELDS = ("enabled", "pause_reason")


class DefinitionQuerySet(PrimaryQuerySet["Definition"]):
    """Definitions that were replaced."""

    def keep(self, replaced: Sequence["Schedule"], followed_by: Mapping[int, int], by: str = "") -> None:
        """Keep these rows, as they were read before the edit, and no more than KEPT of each schedule.

        `followed_by` are the generations that they have now, by primary key.
        """
        values = {row.pk: to_json(values_of(row)) for row in replaced}
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

    def of_generation(self, schedule: int, generation: int) -> "Definition | None":
        """Return what a schedule was in this generation, None where that was not kept."""
        return self.filter(schedule=schedule, since__lte=generation, generation__gte=generation).order_by("-pk").first()


class Definition(PrimaryModel):
    """What a schedule was from the generation `since` to `generation`. See Note [What is kept].

    `values` are those of every field that a person edits, as JSON. `by` says who replaced it, where that is known.
    """

    schedule = models.ForeignKey(
        "django_delayq.Schedule",
        # Deleted with it, by `lock_to_delete`; SQL that deletes a schedule leaves them, and does no harm.
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

    def is_followed_by(self, other: "Definition | Schedule | None") -> bool:
        """Say whether this is what came right after it: whether no edit in between was left out."""
        if isinstance(other, Definition):
            return self.followed_by == other.since
        return other is not None and self.followed_by == other.generation

    def restore(self, *, by: str = "") -> bool:
        """Make the schedule what it was then, but for whether it is paused; False where there is nothing to change.

        What it is now is kept in turn.

        Raises:
            ValidationError: That cannot be saved any more, such as a time that has passed.
        """
        using: str | None = self._state.db
        model: Any = self._meta.get_field("schedule").related_model
        with transaction.atomic(using=using):
            rows = model._base_manager.using(using).select_for_update()
            row: Schedule | None = rows.filter(pk=self.schedule_id).first()
            if row is None:
                return False
            current, then = values_of(row), from_json(model, self.values)
            changed = [name for name in then if name not in SWITCH_FIELDS and then[name] != current[name]]
            return write(row, {name: then[name] for name in changed}, by)


def write(row: "Schedule", changes: Mapping[str, Any], by: str) -> bool:
    """Save these values of a locked row, checked as a person's; False where there are none. `by` says who did it.

    Raises:
        ValidationError: They cannot be saved any more.
    """
    for name, value in changes.items():
        setattr(row, name, value)
    if changes.keys() - SWITCH_FIELDS:
        row.full_clean()
    if changes:
        row.changed_by = by
        row.save(using=row._state.db, update_fields=list(changes))
    return bool(changes)
