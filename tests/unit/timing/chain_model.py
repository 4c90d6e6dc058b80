"""A schedule's chain without Redis and database: claims, records and settles as the worker does, around `decide`.

Every nominal point is counted one by one with `next_after`, never by the arithmetic that `decide` uses. Asserts at each
step what must hold after every history; the tests only make histories.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from django_delayq.timing import Policies, Recurrence, Run, Skip, Windowed, decide, too_old, wake_at

MICROSECOND = timedelta(microseconds=1)


class Row(NamedTuple):
    """One stretch of the ledger."""

    first: datetime
    last: datetime
    points: int
    outcome: str


def walk(rule: Recurrence, after: datetime, until: datetime) -> Iterator[datetime]:
    """Go through the points with `after < point <= until`."""
    point = rule.next_after(after)
    while point is not None and point <= until:
        yield point
        point = rule.next_after(point)


class Chain:
    """The definition, its state, its ledger, and the one entry that Redis holds for it."""

    def __init__(self, rule: Recurrence, policies: Policies, now: datetime) -> None:
        self.rule, self.policies, self.effective_from = rule, policies, now
        self.created_at = now
        #: (rule, from): the definitions before; each has the points after its `from` up to that of the next.
        self.former: list[tuple[Recurrence, datetime]] = []
        self.last_due_at: datetime | None = None
        self.busy_from: datetime | None = None
        self.last_finished_at: datetime | None = None
        self.rows: list[Row] = []
        self.decided: set[datetime] = set()
        self.claims = 0
        self.entry = rule.next_after(now)
        #: The entry was claimed before, and nobody knows how far that came.
        self.lapsed = False
        #: (point, claimed at) of the execution in this chain, and of those that were handed over.
        self.running: tuple[datetime, datetime] | None = None
        self.apart: list[tuple[datetime, datetime]] = []

    # --- what a worker does ---

    def is_due(self, now: datetime) -> bool:
        """Say whether a worker would get the entry."""
        if self.entry is None or self.running is not None:
            return False
        return self.lapsed or wake_at(self.entry, self.policies.jitter, self.policies.key) <= now

    def claim(self, now: datetime, dies: str = "") -> Run | Skip | None:
        """Claim and judge the entry; `dies` before it is "recorded" or "settled", or not at all.

        Returns the decision, None where none was asked for.
        """
        assert self.entry is not None
        self.claims += 1
        point = self.entry
        if self.last_due_at is not None and point <= self.last_due_at:  # recorded, but not settled
            self._settle()
        elif self.lapsed:
            if too_old(point, now, self.policies):
                self._record(point, point, "lost", now, dies)
            else:
                self.running = (point, now)
        else:
            return self._judge(point, now, dies)
        return None

    def _judge(self, point: datetime, now: datetime, dies: str) -> Run | Skip:
        rule = self.rule
        if point <= self.effective_from:
            rule = Windowed(rule, start=self.effective_from + MICROSECOND)  # only points after it are the rule's
        decision = decide(rule, point, now, self.busy_from, self.last_finished_at, self.policies)
        if isinstance(decision, Skip):
            assert decision.first == point <= decision.last <= now
            assert decision.resume_at == rule.next_after(decision.last)
            assert decision.resume_at is None or decision.resume_at > decision.last
            assert decision.points == 1 + sum(
                1 for _ in walk(self.rule, max(point, self.effective_from), decision.last)
            )
            self._record(point, decision.last, decision.reason, now, dies)
            if not dies:
                assert self.entry == decision.resume_at
        elif self.policies.overlap == "allow":
            self._record(point, point, "run", now, dies)
            if dies != "recorded":
                self.apart.append((point, now))
        else:
            self.running = (point, now)
        return decision

    def _record(self, first: datetime, last: datetime, outcome: str, now: datetime, dies: str) -> None:
        if dies == "recorded":
            self.lapsed = True
            return
        points = [first, *walk(self.rule, max(first, self.effective_from), last)]
        self._write(points, outcome)
        self.last_due_at = last
        if dies == "settled":
            self.lapsed = True
        else:
            self._settle()

    def _write(self, points: list[datetime], outcome: str) -> None:
        assert self.decided.isdisjoint(points), "a point was decided twice"
        self.decided.update(points)
        self.rows.append(Row(points[0], points[-1], len(points), outcome))

    def _settle(self) -> None:
        """Go on at the first missing point (see the note of that name in chain.py)."""
        base = self.effective_from if self.last_due_at is None else max(self.last_due_at, self.effective_from)
        self.entry, self.lapsed = self.rule.next_after(base), False

    def finish(self, now: datetime) -> None:
        """End the execution."""
        assert self.running is not None
        (point, claimed_at), self.running = self.running, None
        self._was_busy(point, claimed_at, now)
        self._record(point, point, "run", now, "")

    def finish_apart(self, now: datetime) -> None:
        """End the oldest of the executions that were handed over."""
        self._was_busy(*self.apart.pop(0), now)

    def _was_busy(self, point: datetime, claimed_at: datetime, now: datetime) -> None:
        unbroken = self.last_finished_at is not None and point <= self.last_finished_at
        if not unbroken or self.busy_from is None:
            self.busy_from = claimed_at
        self.last_finished_at = now if self.last_finished_at is None else max(self.last_finished_at, now)

    def die(self) -> None:
        """Lose the worker in the middle of the execution."""
        self.running, self.lapsed = None, True

    # --- what people do ---

    def edit(self, rule: Recurrence, now: datetime) -> None:
        """Change when it is due. A point that is due already still runs; the rest undecided is explained at once."""
        pending = self.entry
        if pending is None or pending > now or (self.last_due_at is not None and pending <= self.last_due_at):
            pending = None
        after = max(filter(None, (pending, self.last_due_at, self.effective_from)))
        left = list(walk(self.rule, after, now))
        if left:
            self._write(left, "edited")
        self.former.append((self.rule, self.effective_from))
        self.rule, self.effective_from = rule, now
        if pending is None:
            self._settle()
            assert self.entry is None or self.entry > now, "an edit made a point in the past"

    # --- what must hold ---

    def nominal(self) -> set[datetime]:
        """Return every point of every definition, up to where the chain has come."""
        eras = [*self.former, (self.rule, self.effective_from)]
        reached = max(self.last_due_at or self.effective_from, self.effective_from)
        spans = zip(eras, [*(start for _, start in eras[1:]), reached], strict=True)
        return {point for (rule, start), until in spans for point in walk(rule, start, until)}

    def check(self) -> None:
        """Assert that each nominal point so far is in exactly one stretch, but for the one that is held."""
        undecided = self.nominal() - self.decided
        assert self.decided <= self.nominal(), "a point was decided that no definition had"
        assert undecided <= {self.entry}, "a point was lost"
        assert sum(row.points for row in self.rows) == len(self.decided)
        if self.entry is not None and not self.lapsed:
            assert self.entry not in self.decided, "the next point is decided already"
            assert self.last_due_at is None or self.entry > self.last_due_at
