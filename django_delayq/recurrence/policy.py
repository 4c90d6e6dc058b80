"""Decides whether a claimed due point runs or is skipped. Pure: the time is an argument, nothing is written."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from ..exceptions import InvalidRecurrence
from .cron import Cron
from .point import MICROSECOND, MILLISECOND, to_ms, to_utc
from .recurrence import Every, Once, Recurrence, Windowed

OVERLAP = ("skip", "queue_one", "queue_all", "allow")
MISSED = ("latest", "all", "skip")
ZERO = timedelta(0)
#: Maximum of the default grace (`grace=None`), which is half the gap to the next point.
LONGEST_DEFAULT_GRACE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Policies:
    """A schedule's rules for late points. `key` is the schedule's name, which feeds the jitter's hash."""

    overlap: str = "skip"
    missed: str = "latest"
    grace: timedelta | None = None
    catch_up_window: timedelta | None = None
    max_catch_up: int = 100
    jitter: timedelta = ZERO
    key: str = ""

    def __post_init__(self) -> None:
        for name, value, allowed in (("overlap", self.overlap, OVERLAP), ("missed", self.missed, MISSED)):
            if value not in allowed:
                raise InvalidRecurrence(f"{name} is one of {', '.join(allowed)}, not {value!r}.", field=name)


@dataclass(frozen=True, slots=True)
class Execute:
    """Run the claimed point."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Skip the points from `first` to `last`, then claim `resume_at`."""

    first: datetime
    last: datetime
    points: int  # at least 1
    reason: str  # overlap, missed, catch_up_window or max_catch_up
    resume_at: datetime | None  # may have passed; None if no point is left


def compute_wake(point: datetime, jitter: timedelta, key: str) -> datetime:
    """Return when to claim the point: the point plus ms in [0, jitter), the same on every machine for this key."""
    point = to_utc(point, "point")
    width_ms = jitter // MILLISECOND if jitter else 0
    if width_ms <= 0:
        return point
    digest = hashlib.blake2b(f"{to_ms(point)} {key}".encode(errors="surrogatepass"), digest_size=8).digest()
    return point + timedelta(milliseconds=int.from_bytes(digest, "big") % width_ms)


def is_too_old(point: datetime, now: datetime, policies: Policies) -> bool:
    """Return whether the point is beyond the catch-up window, counted from its wake. Retries get this check only."""
    window = policies.catch_up_window
    return window is not None and now - compute_wake(point, policies.jitter, policies.key) > window


def decide(
    recurrence: Recurrence,
    point: datetime,
    now: datetime,
    busy_from: datetime | None,
    last_finished_at: datetime | None,
    policies: Policies,
) -> Execute | Skip:
    """Decide about a claimed point at its first attempt. The point need not be on the recurrence, which an edit may
    have changed. `now` is the server time of the claim; `busy_from` to `last_finished_at` is the last unbroken busy
    stretch. Every skip advances: claiming `resume_at` repeatedly ends at `Execute`, in the future, or at None.
    """
    point, now = to_utc(point, "point"), to_utc(now, "now")
    late = _Late(recurrence, point, now, policies)
    if not late.is_late(point):
        return Execute()
    if is_too_old(point, now, policies):
        sure_until = now - (policies.catch_up_window or ZERO)
        return late.skip_while("catch_up_window", sure_until, lambda candidate: is_too_old(candidate, now, policies))
    if policies.overlap == "allow" or busy_from is None or last_finished_at is None:
        return late.judge_missed(None)
    busy = to_utc(busy_from, "busy_from"), min(to_utc(last_finished_at, "last_finished_at"), now)
    woke = compute_wake(point, policies.jitter, policies.key)
    return late.judge_overlap(busy[1]) if busy[0] <= woke <= busy[1] else late.judge_missed(busy)


def decide_all(
    recurrence: Recurrence,
    point: datetime,
    now: datetime,
    busy_from: datetime | None,
    last_finished_at: datetime | None,
    policies: Policies,
) -> tuple[list[Skip], datetime | None]:
    """Decide about a point and, after each skip, the next woken one. Return the skips, and the point to run, if any."""
    skips: list[Skip] = []
    following: datetime | None = point
    while following is not None and (not skips or compute_wake(following, policies.jitter, policies.key) <= now):
        decision = decide(recurrence, following, now, busy_from, last_finished_at, policies)
        if isinstance(decision, Execute):
            return skips, following
        skips.append(decision)
        following = decision.resume_at
    return skips, None


@dataclass(frozen=True, slots=True)
class _Late:
    recurrence: Recurrence
    point: datetime
    now: datetime
    policies: Policies

    def is_late(self, point: datetime) -> bool:
        latency = self.now - compute_wake(point, self.policies.jitter, self.policies.key)
        if self.policies.grace is not None or latency <= ZERO:
            return latency > (self.policies.grace or ZERO)
        if latency > LONGEST_DEFAULT_GRACE:
            return True
        following = self.recurrence.next_after(point)
        return following is not None and latency > (following - point) / 2

    def judge_overlap(self, busy_until: datetime) -> Execute | Skip:
        """Judge a late point that came due while the schedule was busy."""

        def is_woken(candidate: datetime) -> bool:
            return compute_wake(candidate, self.policies.jitter, self.policies.key) <= busy_until

        if self.policies.overlap == "queue_all":
            return Execute()
        if self.policies.overlap == "skip":
            return self.skip_while("overlap", busy_until, is_woken)
        newest, _ = self.find_last(busy_until - max(self.policies.jitter, ZERO), is_woken)
        return self.skip_until("overlap", newest)

    def judge_missed(self, busy: tuple[datetime, datetime] | None) -> Execute | Skip:
        """Judge a point that came due while no worker ran. A later busy stretch is left to the overlap policy."""
        overlapped = None
        if busy is not None and self.point < busy[0]:
            overlapped = self.recurrence.next_after(max(self.point, busy[0] - MICROSECOND))
            if overlapped is not None and overlapped > busy[1]:
                overlapped = None
        if self.policies.missed == "all":
            return self.catch_up(self.now if overlapped is None else overlapped - MICROSECOND)
        if overlapped is not None:
            return self.skip_until("missed", overlapped)
        if self.policies.missed == "skip":
            return self.skip_while("missed", self.now, lambda _: True)
        return self.skip_until("missed", self.find_newest(self.now))

    def catch_up(self, end: datetime) -> Execute | Skip:
        """Keep the newest `max_catch_up` points up to `end`; bisection finds the first of them."""
        keep = self.policies.max_catch_up
        if keep <= 0:
            return self.skip_while("max_catch_up", end, lambda candidate: candidate <= end)
        newest = self.find_newest(end)
        if self.recurrence.count_between(self.point + MICROSECOND, newest) < keep:
            return Execute()
        low, high = self.point, newest + MICROSECOND  # `keep` points from low on, fewer from high on
        while high - low > MICROSECOND:
            middle = low + (high - low) // 2
            if self.recurrence.count_between(middle, newest) >= keep:
                low = middle
            else:
                high = middle
        return self.skip_until("max_catch_up", low)

    def find_newest(self, until: datetime) -> datetime:
        return self.recurrence.previous_at_or_before(until, self.point) or self.point

    def find_last(self, sure: datetime, test: Callable[[datetime], bool]) -> tuple[datetime, datetime | None]:
        """Return the last consecutive point that passes the test, and the next. All up to `sure` must pass."""
        last = self.find_newest(sure)
        following = self.recurrence.next_after(last)
        while following is not None and test(following):
            last, following = following, self.recurrence.next_after(following)
        return last, following

    def skip_while(self, reason: str, sure_until: datetime, test: Callable[[datetime], bool]) -> Skip:
        """Skip the late points that pass the test. All points that wake at or before `sure_until` must pass it."""
        grace = LONGEST_DEFAULT_GRACE if self.policies.grace is None else self.policies.grace
        sure = min(sure_until, self.now - grace) - max(self.policies.jitter, ZERO) - MICROSECOND
        return self.skip(reason, *self.find_last(sure, lambda candidate: self.is_late(candidate) and test(candidate)))

    def skip_until(self, reason: str, resume_at: datetime) -> Execute | Skip:
        if resume_at == self.point:
            return Execute()
        return self.skip(reason, self.find_newest(resume_at - MICROSECOND), resume_at)

    def skip(self, reason: str, last: datetime, resume_at: datetime | None) -> Skip:
        points = 1 + self.recurrence.count_between(self.point + MICROSECOND, last)
        return Skip(first=self.point, last=last, points=points, reason=reason, resume_at=resume_at)


CRON, EVERY, ONCE = "cron", "every", "once"
#: Start of an interval: the due point, or the end of the run.
DUE, FINISH = "due", "finish"


class Recurring:
    """Mixin for classes with the columns of a `Schedule`."""

    __slots__ = ()

    @property
    def recurrence(self: Any) -> Recurrence:
        """Return the rule of this row. Raises InvalidRecurrence if raw SQL or a missing time zone leaves none."""
        return self.build_recurrence(self.start_at or self.created_at)  # type: ignore[no-any-return]

    def build_recurrence(self: Any, anchor: datetime) -> Recurrence:
        """Return the rule with an interval counted from `anchor`; for other kinds the same as `recurrence`."""
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

    def get_rule_and_base(self: Any, state: Any) -> tuple[Recurrence, datetime]:
        """Return the rule and the instant after which its points count: `chain`, Note [Chains have no gaps]."""
        last = None if state is None else state.last_due_at
        base = max(last or self.effective_from, self.effective_from)
        fixed_delay = self.kind == EVERY and self.every_from == FINISH
        if fixed_delay and state is not None and state.last_finished_at is not None:
            anchor = max(state.last_finished_at, self.effective_from)
            return self.build_recurrence(anchor), max(base, anchor)
        return self.recurrence, base

    @property
    def policies(self: Any) -> Policies:
        key = self.name if self.jitter else ""  # schedules without jitter share cached policies
        return _policies(
            self.overlap, self.missed, self.grace, self.catch_up_window, self.max_catch_up, self.jitter, key
        )


_policies = lru_cache(1000)(Policies)
