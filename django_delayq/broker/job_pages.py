"""Jobs in pages, for people to look at: plain reads whose number and size do not grow with the number of jobs.

Note [A page of many shards]
Each shard has its own order, and a page is the first of all of them together. So from each a few are read, and more
only from those whose last one read belongs on the page. A page begins after a place in that common order (score, shard,
how many of that score in that shard were shown), which ZCOUNT turns into a rank: a page far behind costs what the first
one does. What comes, goes or moves between two pages may be seen twice or not at all.
"""

import heapq
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter, methodcaller
from typing import Any, Literal, NamedTuple

from . import keys
from .broker import Broker
from .keys import Shard
from .prefix import SCAN_PAGE
from .scripts import text, wire

#: One step of priority in ms of waiting: PATIENCE of `_jobs.lua`.
PATIENCE_MS = 60_000
Part = Literal["jobs", "ready", "dead", "done"]

_AFTER = re.compile(r"(-?(?:[0-9.]+(?:e[+-]?[0-9]+)?|inf))~([A-Za-z0-9_.-]{1,64}):([0-9]{1,4})~([0-9]{1,9})")


class Ranked(NamedTuple):
    """A job and its score: of `jobs` and `dead` ms since the epoch, of `ready` its turn in µs."""

    shard: Shard
    member: str
    score: float


class After(NamedTuple):
    """Where the next page begins. See Note [A page of many shards]."""

    score: float
    shard: Shard
    shown: int

    def __str__(self) -> str:
        return f"{self.score!r}~{self.shard}~{self.shown}"

    @classmethod
    def parse(cls, value: str) -> "After | None":
        """Return what `str` wrote; None for anything else."""
        found = _AFTER.fullmatch(value)
        try:
            return found and cls(float(found[1]), Shard(found[2], int(found[3])), int(found[4]))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Page:
    """Jobs in their order; `after` is None where there are no more."""

    rows: list[Ranked]
    after: After | None


class JobPages:
    """Reads of the jobs of a prefix. Raises what `Broker` does; no method retries."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def ordered(
        self, part: Part, shards: Sequence[Shard], size: int, *, after: After | None = None, newest_first: bool = False
    ) -> Page:
        """Return the next jobs of these shards in the order of their scores; see Note [A page of many shards]."""
        if not shards:
            return Page([], None)
        order = {shard: index for index, shard in enumerate(shards)}
        if after is not None and after.shard not in order:
            after = None
        starts = self._starts(part, order, after, newest_first)
        sign, count = -1 if newest_first else 1, min(size + 1, 4 + 2 * size // len(shards))
        pages = self._ranks(part, [(shard, starts[shard], count) for shard in shards], newest_first)

        def rows(shard: Shard, page: list[Ranked]) -> Iterator[tuple[float, int, Ranked]]:
            start, wanted = starts[shard], count
            yield from ((sign * row.score, order[shard], row) for row in page)
            while len(page) == wanted:
                start, wanted = start + wanted, size + 1
                (page,) = self._ranks(part, [(shard, start, wanted)], newest_first)
                yield from ((sign * row.score, order[shard], row) for row in page)

        merged = heapq.merge(*map(rows, shards, pages), key=itemgetter(0, 1))
        found = [row for _, _, row in islice(merged, size + 1)]
        return Page(found[:size], after_of(found[:size], after) if len(found) > size else None)

    def held(self, shards: Sequence[Shard], most: int) -> list[tuple[Shard, str, str]]:
        """Return (shard, member, holder) of jobs that workers hold, in no order: all of them, or about `most`."""
        found: list[tuple[Shard, str, str]] = []
        cursors: Mapping[Shard, Any] = dict.fromkeys(shards, 0)
        while cursors and len(found) < most:
            count = max(10, min(SCAN_PAGE, most) // len(cursors))
            commands = [
                methodcaller("hscan", self._names(shard)["held"], cursor, count=count)
                for shard, cursor in cursors.items()
            ]
            seen = list(zip(cursors, self.broker.ask_all(commands), strict=True))
            found += [
                (shard, text(member), text(holder)) for shard, (_, page) in seen for member, holder in page.items()
            ]
            cursors = {shard: cursor for shard, (cursor, _) in seen if int(cursor)}
        return found

    def turn_us(self, shard: Shard, member: str) -> int | None:
        """Return the turn of a job that is ready, in µs; None where it is not."""
        score = self.broker.ask("zscore", self._names(shard)["ready"], wire(member))
        return None if score is None or not math.isfinite(score) else int(score)

    # -- inside

    def _starts(
        self, part: Part, order: Mapping[Shard, int], after: After | None, newest_first: bool
    ) -> dict[Shard, int]:
        """Return for each shard the rank of its first job that was not shown yet."""
        if after is None:
            return dict.fromkeys(order, 0)
        commands = []
        for shard, index in order.items():
            bound = f"{'' if index < order[after.shard] else '('}{after.score!r}"
            span = (bound, "+inf") if newest_first else ("-inf", bound)
            commands.append(methodcaller("zcount", self._names(shard)[part], *span))
        starts = {shard: int(count) for shard, count in zip(order, self.broker.ask_all(commands), strict=True)}
        starts[after.shard] += after.shown
        return starts

    def _ranks(self, part: Part, spans: Sequence[tuple[Shard, int, int]], newest_first: bool) -> list[list[Ranked]]:
        commands = []
        for shard, start, count in spans:
            first, last = (-start - count, -start - 1) if newest_first else (start, start + count - 1)
            commands.append(methodcaller("zrange", self._names(shard)[part], first, last, withscores=True))
        return [
            [Ranked(shard, text(member), float(score)) for member, score in reply[:: -1 if newest_first else 1]]
            for (shard, _, _), reply in zip(spans, self.broker.ask_all(commands), strict=True)
        ]

    def _names(self, shard: Shard) -> dict[str, str]:
        return keys.all_keys(self.broker.config.prefix, shard)


def after_of(shown: Sequence[Ranked], before: After | None) -> After | None:
    """Return where the next page begins if these were shown of the one that began there."""
    if not shown:
        return before
    last = shown[-1]
    count = sum(row.shard == last.shard and row.score == last.score for row in shown)
    if before is not None and (before.score, before.shard) == (last.score, last.shard):
        count += before.shown
    return After(last.score, last.shard, count)
