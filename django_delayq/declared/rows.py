"""The rows that declared schedules have or could take over. Locks them where asked to; writes nothing."""

from collections.abc import Collection
from typing import Self

from django.db import IntegrityError
from django.db.models import Q

from ..models import Declaration, Schedule


class Overtaken(IntegrityError):
    """Another sync wrote between two reads of this one: begin the transaction anew."""


class Rows:
    """Schedules by primary key and by name, declarations by key and by schedule."""

    def __init__(self, declarations: Collection[Declaration], schedules: Collection[Schedule]) -> None:
        self.schedules = {each.pk: each for each in schedules}
        self.named = {each.name: each for each in schedules}
        known = [each for each in declarations if each.pk in self.schedules]  # else deleted between the two queries
        self.declarations = {each.key: each for each in known}
        self.of_schedule = {each.pk: each for each in known}

    @classmethod
    def read_all(cls, using: str, names: Collection[str]) -> Self:
        """Return every declared schedule, and those of these names."""
        declarations = Declaration._base_manager.using(using).all()
        wanted = Q(pk__in=[each.pk for each in declarations]) | Q(name__in=names)
        return cls(declarations, Schedule._base_manager.using(using).filter(wanted))

    @classmethod
    def lock(cls, using: str, key: str, names: Collection[str]) -> Self:
        """Return and lock the schedule of a key, and those of these names.

        Declarations are locked first: see `models/locks.py`, Note [Order of locks].

        Raises:
            Overtaken: There is a declaration now that was not there when declarations were locked.
        """
        declarations = Declaration._base_manager.using(using).order_by("pk")
        schedules = Schedule._base_manager.using(using).order_by("pk")
        named = list(schedules.filter(name__in=names).values_list("pk", flat=True))
        locked = declarations.select_for_update().filter(Q(key=key) | Q(pk__in=named))
        wanted = Q(pk__in=[each.pk for each in locked]) | Q(name__in=names)
        rows = cls(locked, schedules.select_for_update().filter(wanted))
        again = declarations.filter(Q(key=key) | Q(pk__in=list(rows.schedules)))
        if {(each.pk, each.key) for each in again} != {(each.pk, each.key) for each in locked}:
            raise Overtaken(f"The schedule declared as {key!r} is being written by another sync.")
        return rows
