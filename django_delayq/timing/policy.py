"""Decides whether a claimed due point runs or is skipped. Pure: the time is an argument, nothing is written."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..exceptions import InvalidRecurrence
from .point import MICROSECOND, as_utc, to_ms
from .recurrence import Recurrence

OVERLAP = ("skip", "queue_one", "queue_all", "allow")
MISSED = ("latest", "all", "skip")
ZERO, MILLISECOND = timedelta(0), timedelta(milliseconds=1)
#: What `grace=None` means at most; half the gap to the next point, if that is less.
LONGEST_DEFAULT_GRACE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Policies:
    """What a schedule wants done with late points. `key` is its name: it feeds the jitter's hash.

    Raises:
        InvalidRecurrence: A value is none of the known ones; `field` names it.
    """

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
class Run:
    """Run the claimed point."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Skip the points from `first` to `last`, then claim `resume_at`, which may have passed; None: there is none left.

    `reason` is `overlap`, `missed`, `catch_up_window` or `max_catch_up`; `points` is how many are skipped, at least 1.
    """

    first: datetime
    last: datetime
    points: int
    reason: str
    resume_at: datetime | None


def wake_at(point: datetime, jitter: timedelta, key: str) -> datetime:
    """Return when the point is to be claimed: itself plus a whole number of ms in [0, jitter).

    The same key and point give the same answer in every process and on every machine.

    Raises:
        ValueError: The point is naive.
    """
    point = as_utc(point, "point")
    width_ms = jitter // MILLISECOND if jitter else 0
    if width_ms <= 0:
        return point
    digest = hashlib.blake2b(f"{to_ms(point)} {key}".encode(errors="surrogatepass"), digest_size=8).digest()
    return point + timedelta(milliseconds=int.from_bytes(digest, "big") % width_ms)


def too_old(point: datetime, now: datetime, policies: Policies) -> bool:
    """Return whether the point is beyond the catch-up window, counted from its wake. Retries are asked only this.

    Raises:
        ValueError: An instant is naive.
    """
    window = policies.catch_up_window
    return window is not None and now - wake_at(point, policies.jitter, policies.key) > window


def decide(
    recurrence: Recurrence,
    point: datetime,
    now: datetime,
    busy_from: datetime | None,
    last_finished_at: datetime | None,
    policies: Policies,
) -> Run | Skip:
    """Decide about a claimed point at its first attempt.

    `now` is the claim's server time; `busy_from` to `last_finished_at` is the schedule's last unbroken busy stretch.
    Every skip moves on, so that claiming `resume_at` again and again ends at `Run`, in the future, or at None.
    The point itself need not lie on the recurrence (an edit may have moved that).

    Raises:
        ValueError: An instant is naive.
    """
    point, now = as_utc(point, "point"), as_utc(now, "now")
    late = _Lateness(recurrence, now, policies)
    if not late.is_late(point):
        return Run()
    if too_old(point, now, policies):
        return late.skip_while(
            "catch_up_window", point, now - (policies.catch_up_window or ZERO), lambda p: too_old(p, now, policies)
        )
    busy = None
    if policies.overlap != "allow" and busy_from is not None and last_finished_at is not None:
        busy = (as_utc(busy_from, "busy_from"), min(as_utc(last_finished_at, "last_finished_at"), now))
    if busy is not None and busy[0] <= late.wake(point) <= busy[1]:
        return _overlapped(late, point, busy[1])
    return _missed(late, point, busy)


def decide_all(
    recurrence: Recurrence,
    point: datetime,
    now: datetime,
    busy_from: datetime | None,
    last_finished_at: datetime | None,
    policies: Policies,
) -> tuple[list[Skip], datetime | None]:
    """Decide about a claimed point and, where it is skipped, about what follows and has woken by `now`.

    Returns the skips in their order, and the point that runs now: None where none has woken by then, or none is left.
    The arguments and errors are those of `decide`.
    """
    skips: list[Skip] = []
    following: datetime | None = point
    while following is not None and (not skips or wake_at(following, policies.jitter, policies.key) <= now):
        decision = decide(recurrence, following, now, busy_from, last_finished_at, policies)
        if isinstance(decision, Run):
            return skips, following
        skips.append(decision)
        following = decision.resume_at
    return skips, None


@dataclass(frozen=True, slots=True)
class _Lateness:
    """One decision's view of the schedule: which points are late, and how far a stretch of them reaches."""

    recurrence: Recurrence
    now: datetime
    policies: Policies

    def wake(self, point: datetime) -> datetime:
        return wake_at(point, self.policies.jitter, self.policies.key)

    def is_late(self, point: datetime) -> bool:
        lag = self.now - self.wake(point)
        if self.policies.grace is not None or lag <= ZERO:
            return lag > (self.policies.grace or ZERO)
        if lag > LONGEST_DEFAULT_GRACE:
            return True
        following = self.recurrence.next_after(point)
        return following is not None and lag > (following - point) / 2

    def skip_while(self, reason: str, point: datetime, sure_until: datetime, test: Callable[[datetime], bool]) -> Skip:
        """Skip the point and those after it as long as they are late and pass the test.

        All points whose wake is at or before `sure_until` pass the test: the walk begins near there, not at `point`.
        """
        grace = LONGEST_DEFAULT_GRACE if self.policies.grace is None else self.policies.grace
        sure = min(sure_until, self.now - grace) - max(self.policies.jitter, ZERO) - MICROSECOND
        last = self.newest(sure, point)
        resume_at = self.recurrence.next_after(last)
        while resume_at is not None and self.is_late(resume_at) and test(resume_at):
            last, resume_at = resume_at, self.recurrence.next_after(resume_at)
        return self.skip(reason, point, last, resume_at)

    def skip(self, reason: str, point: datetime, last: datetime, resume_at: datetime | None) -> Skip:
        points = 1 + self.recurrence.count_between(point + MICROSECOND, last)
        return Skip(first=point, last=last, points=points, reason=reason, resume_at=resume_at)

    def skip_until(self, reason: str, point: datetime, resume_at: datetime) -> Skip:
        return self.skip(reason, point, self.newest(resume_at - MICROSECOND, point), resume_at)

    def newest(self, until: datetime, point: datetime) -> datetime:
        """Return the newest point up to an instant, or `point` if there is none after it."""
        return self.recurrence.previous_at_or_before(until, point) or point


def _overlapped(late: _Lateness, point: datetime, busy_until: datetime) -> Run | Skip:
    if late.policies.overlap == "queue_all":
        return Run()

    def woke_meanwhile(candidate: datetime) -> bool:
        return late.wake(candidate) <= busy_until

    if late.policies.overlap == "skip":
        return late.skip_while("overlap", point, busy_until, woke_meanwhile)
    newest = late.newest(busy_until - max(late.policies.jitter, ZERO), point)
    following = late.recurrence.next_after(newest)
    while following is not None and woke_meanwhile(following):
        newest, following = following, late.recurrence.next_after(following)
    return Run() if newest == point else late.skip_until("overlap", point, newest)


def _missed(late: _Lateness, point: datetime, busy: tuple[datetime, datetime] | None) -> Run | Skip:
    """Judge a late point that came due while nobody was there."""
    policies = late.policies
    overlapped = None if busy is None else _first_overlapped(late.recurrence, point, busy)
    if policies.missed == "all":
        return _catch_up(late, point, late.now if overlapped is None else overlapped - MICROSECOND)
    if overlapped is not None:
        return late.skip_until("missed", point, overlapped)
    if policies.missed == "skip":
        return late.skip_while("missed", point, late.now, lambda _: True)
    newest = late.newest(late.now, point)
    return Run() if newest == point else late.skip_until("missed", point, newest)


def _first_overlapped(recurrence: Recurrence, point: datetime, busy: tuple[datetime, datetime]) -> datetime | None:
    """Return the first point after `point` that belongs to a later busy stretch, and so to the overlap policy.

    What was missed ends there: a point that `queue_all` promises to run is not skipped as missed.
    """
    if point >= busy[0]:
        return None
    candidate = recurrence.next_after(max(point, busy[0] - MICROSECOND))
    return candidate if candidate is not None and candidate <= busy[1] else None


def _catch_up(late: _Lateness, point: datetime, end: datetime) -> Run | Skip:
    """Keep the newest `max_catch_up` of the points from `point` to `end`, the first of them found by bisection."""
    recurrence, keep = late.recurrence, late.policies.max_catch_up
    if keep <= 0:
        return late.skip_while("max_catch_up", point, end, lambda candidate: candidate <= end)
    newest = late.newest(end, point)
    if recurrence.count_between(point + MICROSECOND, newest) < keep:
        return Run()
    low, high = point, newest + MICROSECOND  # `keep` points from low on, fewer from high on
    while high - low > MICROSECOND:
        middle = low + (high - low) // 2
        if recurrence.count_between(middle, newest) >= keep:
            low = middle
        else:
            high = middle
    return late.skip_until("max_catch_up", point, low)
