"""The row that users edit. Saving it never fails because of Redis, and never starts a run."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db import connections, models, router, transaction
from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext_lazy as _

from ..recurrence.point import utcnow
from ..recurrence.preview import PreviewPoint, preview
from ..signals import definitions_changed, definitions_deleted
from . import versions
from .columns import list_own_fields
from .definition import AbstractSchedule
from .kept import MOST_AT_ONCE, SWITCH_FIELDS, Definition
from .primary import PrimaryQuerySet, lock_rows, lock_to_delete
from .records import Tag, Tombstone
from .state import Condition
from .versions import BOOKKEEPING_FIELDS, TIMING_FIELDS, is_expression

#: Fields that may change in a definition that is no longer valid.
UNCHECKED_FIELDS = {"name", "description", *SWITCH_FIELDS}


class ScheduleQuerySet(PrimaryQuerySet["Schedule"]):
    def enabled(self) -> Self:
        """Return the schedules that can run: enabled, with a next due point that exists and can be computed."""
        return self.filter(enabled=True).exclude(state__condition__in=[Condition.FINISHED, Condition.BROKEN])

    def paused(self) -> Self:
        return self.filter(enabled=False)

    def failing(self) -> Self:
        return self.filter(state__failing_streak__gt=0)

    def finished(self) -> Self:
        """Return the schedules with no further due point."""
        return self.filter(state__condition=Condition.FINISHED)

    def broken(self) -> Self:
        """Return the schedules whose next due point cannot be computed."""
        return self.filter(state__condition=Condition.BROKEN)

    def tagged(self, name: str) -> Self:
        return self.filter(tags__name=name)

    def read_used_names(self, most: int, *only: str) -> dict[str, list[str]]:
        """Return up to `most` names in use for each "queue", "task" and "tag", or `only` these. Reads only indexes."""
        own = self._query_schedules().model
        names: dict[str, list[str]] = {name: [] for name in only or ("queue", "task", "tag")}
        quote, found, parts = connections[self.db].ops.quote_name, [], []
        for what in names:
            table = quote((Tag if what == "tag" else own)._meta.db_table)
            column = quote("name" if what == "tag" else what)
            found.append(
                f"{what}s AS (SELECT MIN({column}) AS name, 1 AS n FROM {table} UNION ALL SELECT "  # noqa: S608 - ours
                f"(SELECT MIN({column}) FROM {table} WHERE {column} > {what}s.name), n + 1 FROM {what}s "
                "WHERE name IS NOT NULL AND n < %s)"
            )
            parts.append(f"SELECT '{what}', name FROM {what}s WHERE name IS NOT NULL")  # noqa: S608
        with connections[self.db].cursor() as cursor:
            cursor.execute(f"WITH RECURSIVE {', '.join(found)} {' UNION ALL '.join(parts)}", [most] * len(names))
            for what, name in cursor.fetchall():
                names[what].append(name)
        return names

    def _query_schedules(self) -> "QuerySet[Schedule]":
        """Return all schedules as this app's own model, even if `self.model` is a subclass."""
        model: Any = Definition._meta.get_field("schedule").related_model
        rows: QuerySet[Schedule] = model._base_manager.using(self.db)
        return rows

    def unmirrored(self) -> Self:
        """Return the schedules whose last edit has not reached Redis."""
        return self.exclude(generation=F("synced_generation"))

    def update(self, **kwargs: Any) -> int:
        """Update like Django's, unvalidated; Redis follows on commit. See Note [Edits keep definitions]."""
        definition = {field.name for field in list_own_fields(self.model)} - BOOKKEEPING_FIELDS
        if definition.isdisjoint(kwargs):
            return super().update(**kwargs)
        version = {"generation": versions.build_next_generation(), **versions.build_move_by(kwargs)}
        kwargs = {"updated_at": utcnow(), **kwargs, **version}
        self._for_write = True
        computed = sorted(name for name in TIMING_FIELDS & kwargs.keys() if is_expression(kwargs[name]))
        with transaction.atomic(using=self.db):
            columns = ("pk", "generation", "queue", *computed)
            written = self._query_schedules().filter(pk__in=self.order_by().values("pk"))
            rows = {row[0]: row[1:] for row in lock_rows(written).values_list(*columns)}
            replaced = list(written.filter(pk__in=list(rows))) if 0 < len(rows) <= MOST_AT_ONCE else []
            changed = super().update(**kwargs)
            if "queue" in kwargs or computed:
                self._follow_update(rows, columns)
            if replaced:
                now = self._query_schedules().filter(pk__in=list(rows))
                Definition.objects.using(self.db).keep(replaced, dict(now.values_list("pk", "generation")))
            definitions_changed.send(sender=self._query_schedules().model, pks=list(rows), using=self.db)
        return changed

    def _follow_update(self, rows: dict[int, tuple[Any, ...]], columns: Sequence[str]) -> None:
        """Find moves to another queue, and timing changed by expressions, by comparing rows; write what they need."""
        written = self._query_schedules().filter(pk__in=list(rows))
        elsewhere, retimed = [], []
        for pk, _generation, queue, *timing in written.values_list(*columns):
            generation, old_queue, *old_timing = rows[pk]
            if queue != old_queue:
                elsewhere.append((pk, old_queue, generation))
            if timing != old_timing:
                retimed.append(pk)
        Tombstone.add(elsewhere, using=self.db)
        written.filter(pk__in=retimed).update(**versions.build_move())

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete like Django's, including running schedules. See `primary.py`, Note [Schedules are locked first]."""
        with transaction.atomic(using=self.db):
            lock_to_delete(self._query_schedules().filter(pk__in=self.order_by().values("pk")))
            self.gone: list[tuple[int, str, int]] = []  # filled by the receiver of `post_delete`
            deleted = super().delete()
            definitions_deleted.send(sender=self._query_schedules().model, entries=self.gone, using=self.db)
            return deleted

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable["Schedule"], *args: Any, **kwargs: Any) -> list["Schedule"]:
        """Insert like Django's. Each row is validated and begins a generation; Redis follows on commit."""
        rows = list(objs)
        for row in rows:
            row.declared_key = row.declaration_gone_at = None  # a copied instance is not declared
            row.begin_version()
            row.clean()
        with transaction.atomic(using=self.db):
            created = super().bulk_create(rows, *args, **kwargs)
            pks = [row.pk for row in created if row.pk is not None]
            if kwargs.get("update_conflicts"):  # an edit of existing rows
                written = self._query_schedules().filter(pk__in=pks)
                written.update(generation=versions.build_next_generation(), **versions.build_move())
            definitions_changed.send(sender=self._query_schedules().model, pks=pks, using=self.db)
        return created


class Schedule(AbstractSchedule):
    """A task with its recurrence and policies."""

    objects = ScheduleQuerySet.as_manager()

    if TYPE_CHECKING:
        from .state import ScheduleState

        state: ScheduleState

    @property
    def is_declared(self) -> bool:
        """True if the code declares the schedule, and so owns its fields."""
        return self.declared_key is not None and self.declaration_gone_at is None

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("name",)
        permissions = (
            ("run_schedule", "Can run schedules now, and backfill them"),
            ("pause_schedule", "Can pause and resume schedules"),
        )
        constraints = (
            models.CheckConstraint(
                name="delayq_schedule_one_recurrence",
                condition=(
                    Q(kind="cron", every__isnull=True, at__isnull=True) & ~Q(cron="")
                    | Q(kind="every", cron="", every__isnull=False, at__isnull=True)
                    | Q(kind="once", cron="", every__isnull=True, at__isnull=False)
                ),
                violation_error_message=_("Set only one of cron, every and at: the one that the kind names."),
            ),
            models.CheckConstraint(
                name="delayq_schedule_positive",
                condition=(Q(every__isnull=True) | Q(every__gt=timedelta(0)))
                & Q(max_attempts__gte=1, jitter__gte=timedelta(0)),
                violation_error_message=_("Intervals and attempts are positive, jitter is not negative."),
            ),
        )
        indexes = (
            models.Index(
                fields=("generation",),
                name="delayq_schedule_unmirrored",
                condition=~Q(generation=F("synced_generation")),
            ),
            models.Index(fields=("enabled", "name"), name="delayq_schedule_enabled"),
            models.Index(fields=("task",), name="delayq_schedule_task"),
            models.Index(fields=("kind", "name"), name="delayq_schedule_kind"),
            models.Index(fields=("queue", "name"), name="delayq_schedule_queue"),
            models.Index(fields=("queue", "id"), name="delayq_schedule_by_queue"),
            models.Index(
                fields=("task", "backend", "priority"), name="delayq_schedule_handed_over", condition=~Q(backend="")
            ),
            models.Index(fields=("id",), name="delayq_schedule_expected", condition=Q(expected_within__isnull=False)),
            models.Index(fields=("id",), name="delayq_schedule_gone", condition=Q(declaration_gone_at__isnull=False)),
        )

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save with a new generation; Redis follows on commit. Raises ValidationError for values that cannot run."""
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        fields = kwargs.get("update_fields")
        if fields is not None and set(fields) <= BOOKKEEPING_FIELDS:
            super().save(*args, **kwargs)
            return
        with transaction.atomic(using=using):
            old = None
            if self.pk is not None and not kwargs.get("force_insert"):
                old = Schedule._base_manager.using(using).select_for_update().filter(pk=self.pk).first()
            if old is None:
                self.declared_key = self.declaration_gone_at = None  # a copied instance is not declared
                self.begin_version()
                self.clean()
                super().save(*args, **kwargs)
                return
            names = {field.name for field in list_own_fields(type(self))} - BOOKKEEPING_FIELDS
            names = names if fields is None else names & set(fields)
            changed = {name for name in names if getattr(self, name) != getattr(old, name)}
            if not changed and self._meta.concrete_model is not Schedule:  # only fields of a subclass
                self.__dict__.update({name: getattr(old, name) for name in BOOKKEEPING_FIELDS})
                super().save(*args, **kwargs)
                return
            if changed - UNCHECKED_FIELDS:
                self.clean()
            if "queue" in changed:
                Tombstone.add([(old.pk, old.queue, old.generation)], using=using)
            version = versions.build_version(old, changed)
            self.__dict__.update(version)
            by, self.changed_by = self.changed_by, ""
            if fields is not None:
                kwargs["update_fields"] = {*fields, *version}
            super().save(*args, **kwargs)
            # If SQL edited the row before, the sync has created a further version.
            self.refresh_from_db(using=using, fields=["generation", "replaced_from", "effective_from"])
            Definition.objects.using(using).keep([old], {old.pk: self.generation}, by)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete, even while it runs: no new run starts, Redis follows. See Note [Schedules are locked first]."""
        using = using or router.db_for_write(type(self), instance=self)
        if keep_parents and self._meta.concrete_model is not Schedule:  # delete only the row of the subclass
            return super().delete(using=using, keep_parents=True)
        with transaction.atomic(using=using):
            lock_to_delete(Schedule._base_manager.using(using).filter(pk=self.pk))
            return super().delete(using=using)

    delete.alters_data = True  # type: ignore[attr-defined]

    def preview(self, n: int, start: datetime | None = None) -> list[PreviewPoint]:
        """Return the first `n` undecided due points after `start`, by default from now, with notes on each."""
        return preview(self, n, start or utcnow())

    def pause(self, reason: str = "", *, by: str = "") -> None:
        """Start no further run; a running one finishes and is recorded. `by` names the user."""
        self.enabled, self.pause_reason, self.changed_by = False, reason, by
        self.save(update_fields=SWITCH_FIELDS)

    def resume(self, *, by: str = "") -> None:
        """Continue with the first due point from now on. Points during the pause are not made up for."""
        self.enabled, self.pause_reason, self.changed_by = True, "", by
        self.save(update_fields=SWITCH_FIELDS)
