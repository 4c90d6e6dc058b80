"""Bulk reads and writes of schedules. Bulk writes are versioned and announced like `Schedule.save()`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from django.db import connections, transaction
from django.db.models import F, QuerySet

from ..recurrence.point import utcnow
from ..signals import definitions_changed, definitions_deleted
from .columns import list_own_fields
from .kept import MOST_AT_ONCE, Definition
from .primary import PrimaryQuerySet, lock_rows, lock_to_delete
from .records import Tag, Tombstone
from .state import Condition
from .versions import BOOKKEEPING_FIELDS, TIMING_FIELDS, build_move, build_move_by, build_next_generation, is_expression

if TYPE_CHECKING:
    from .schedule import Schedule


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
        kwargs = {"updated_at": utcnow(), **kwargs, "generation": build_next_generation(), **build_move_by(kwargs)}
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
        """Follow the real changes row by row: moves to another queue, and timing set by expressions."""
        written = self._query_schedules().filter(pk__in=list(rows))
        elsewhere, retimed = [], []
        for pk, _, queue, *timing in written.values_list(*columns):
            generation, old_queue, *old_timing = rows[pk]
            if queue != old_queue:
                elsewhere.append((pk, old_queue, generation))
            if timing != old_timing:
                retimed.append(pk)
        Tombstone.add(elsewhere, using=self.db)
        written.filter(pk__in=retimed).update(**build_move())

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
            row.declared_key = row.declaration_gone_at = None  # of a copy
            row.begin_version()
            row.clean()
        with transaction.atomic(using=self.db):
            created = super().bulk_create(rows, *args, **kwargs)
            pks = [row.pk for row in created if row.pk is not None]
            if kwargs.get("update_conflicts"):  # an edit of existing rows
                written = self._query_schedules().filter(pk__in=pks)
                written.update(generation=build_next_generation(), **build_move())
            definitions_changed.send(sender=self._query_schedules().model, pks=pks, using=self.db)
        return created
