"""What the columns of a schedule mean: its rule and its policies. For the model and for the workers' plain rows."""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from .exceptions import InvalidRecurrence
from .timing import Cron, Every, Once, Policies, Recurrence, Windowed

CRON, EVERY, ONCE = "cron", "every", "once"
#: What the points of an interval are counted from.
DUE, FINISH = "due", "finish"


class Recurring:
    """Whatever has the columns of a `Schedule`."""

    __slots__ = ()

    @property
    def recurrence(self: Any) -> Recurrence:
        """Return the pure rule of this row, bounded by `start_at` and `end_at`.

        Raises:
            InvalidRecurrence: The row does not hold a usable one (raw SQL, a zone gone from the system).
        """
        return self.recurrence_from(self.start_at or self.created_at)  # type: ignore[no-any-return]

    def recurrence_from(self: Any, anchor: datetime) -> Recurrence:
        """Return the rule with an interval's lattice laid through `anchor`; for other kinds the same as `recurrence`.

        Raises:
            InvalidRecurrence: See `recurrence`.
        """
        rule: Recurrence
        if self.kind == CRON:
            rule = Cron(
                self.cron, timezone=self.timezone, dst_gap=self.dst_gap, dst_overlap=self.dst_overlap, key=self.name
            )
        elif self.kind == EVERY:
            if self.every_from not in (DUE, FINISH):
                raise InvalidRecurrence(f"every_from is due or finish, not {self.every_from!r}.", field="every_from")
            rule = Every(self.every or timedelta(0), anchor=anchor)
        elif self.kind == ONCE:
            rule = Once(self.at)  # None is refused by Once, with a message
        else:  # raw SQL
            raise InvalidRecurrence(f"The kind is one of cron, every and once, not {self.kind!r}.", field="kind")
        if self.start_at or self.end_at:
            return Windowed(rule, start=self.start_at, end=self.end_at)
        return rule

    def rule_and_base(self: Any, state: Any) -> tuple[Recurrence, datetime]:
        """Return the rule and the instant after which its points count: `chain`, Note [First missing point].

        `state` is None where there is none yet.

        Raises:
            InvalidRecurrence: See `recurrence`.
        """
        last = None if state is None else state.last_due_at
        base = max(last or self.effective_from, self.effective_from)
        fixed_delay = self.kind == EVERY and self.every_from == FINISH
        if fixed_delay and state is not None and state.last_finished_at is not None:
            anchor = max(state.last_finished_at, self.effective_from)
            return self.recurrence_from(anchor), max(base, anchor)
        return self.recurrence, base

    @property
    def policies(self: Any) -> Policies:
        """Return what decides about late points.

        Raises:
            InvalidRecurrence: A policy is none of the known ones (raw SQL).
        """
        key = self.name if self.jitter else ""  # so that most schedules share theirs
        return _policies(
            self.overlap, self.missed, self.grace, self.catch_up_window, self.max_catch_up, self.jitter, key
        )


_policies = lru_cache(1000)(Policies)
