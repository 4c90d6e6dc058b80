"""The index of a test, in memory: what the database wants, and which members are leased, or handed back with a delay.

Not emulated: lost replies, expiring leases, limits, and the division of a claim between points and jobs.
"""

from collections.abc import Sequence
from typing import Any

from .. import conf, ledger
from ..index import Broker, Claim, Entry, EntryDefinition, Settled, Settlement, Shard
from ..index.keys import Mode
from ..models import Schedule
from ..recurrence import to_ms
from ..recurrence.point import utcnow
from ..sync import PAGE
from ..sync.read import read_wanted
from ..sync.runs import build_definition

#: Milliseconds of waiting that one step of priority is worth, as in the scripts.
STEP_MS = 60_000


class MemoryIndex(Broker):
    """An index with one shard per queue and no layout. Raises if Redis would be queried."""

    def __init__(self) -> None:
        super().__init__(timeout_seconds=0, worker="test", client=object())
        self._shards: dict[str, Shard] = {}
        self._wanted: dict[str, EntryDefinition] = {}
        #: Members that were handed back, with the time of their next claim, and their retries.
        self._waiting: dict[str, tuple[EntryDefinition, int]] = {}
        #: Leased members: holder, definition and retries.
        self._leased: dict[str, tuple[str, EntryDefinition, int]] = {}
        self._claims = 0

    @property
    def client(self) -> Any:
        raise NotImplementedError(f"This asks Redis, and nothing is sent there. {conf.explain_no_redis()}.")

    def get_shard(self, member: str, queue: str) -> Shard:
        return Shard(queue, 0)

    def read_now_ms(self) -> int:
        return to_ms(utcnow())

    def refresh(self) -> None:
        """Read what the database wants, also in a transaction that never commits."""
        pks = list(Schedule._base_manager.using(ledger.get_database()).values_list("pk", flat=True))
        wanted = [(each.queue, each.definition) for each in read_wanted(pks) if each.point is not None]
        for page in ledger.read_open_pages(PAGE):
            wanted += [(run.queue, build_definition(run)) for run in page]
        self._wanted = {item.member: item for _queue, item in wanted}
        self._shards |= {item.member: Shard(queue, 0) for queue, item in wanted}

    def find_first(self) -> tuple[int, Shard] | None:
        """Return the wake time in ms and the shard of the first free member, or None."""
        return next(((_get_wake_ms(item), self._shards[item.member]) for item, _retries in self._list_free()), None)

    def _list_free(self) -> list[tuple[EntryDefinition, int]]:
        """Return members without a lease, and their retries: due ones by wake time and priority, then the others."""
        free = {member: (item, 0) for member, item in self._wanted.items()}
        for member, waiting in self._waiting.items():
            if member not in free or free[member][0].point_ms == waiting[0].point_ms:  # else it was moved
                free[member] = waiting
        now_ms = self.read_now_ms()

        def get_turn(entry: tuple[EntryDefinition, int]) -> tuple[bool, int, int]:
            wake_ms, item = _get_wake_ms(entry[0]), entry[0]
            is_due = wake_ms <= now_ms
            return not is_due, wake_ms - item.priority * STEP_MS * is_due, item.point_ms * (not is_due)

        return sorted((entry for member, entry in free.items() if member not in self._leased), key=get_turn)

    # -- what a worker does

    def claim(self, shard: Shard, *, limit: int, lease_ms: int, request: int, most: int | None = None) -> Claim:
        now_ms = self.read_now_ms()
        self._claims += 1
        fence = f"{now_ms}.{self._claims}"
        holder = f"{fence} {self.worker}"
        here = [entry for entry in self._list_free() if self._shards[entry[0].member] == shard]
        due = [(item, retries) for item, retries in here if _get_wake_ms(item) <= now_ms][:limit]
        self._leased |= {item.member: (holder, item, retries) for item, retries in due}
        entries = [Entry(item.member, item.point_ms, item.generation, retries, lapsed=False) for item, retries in due]
        return Claim(now_ms, None, "memory", fence, holder, tuple(entries))

    def renew(self, shard: Shard, leases: Sequence[tuple[str, str]], *, lease_ms: int) -> set[str]:
        return set()

    def settle(self, shard: Shard, settlements: Sequence[Settlement]) -> Settled:
        now_ms = self.read_now_ms()
        for settlement in settlements:
            _holder, item, retries = self._leased.pop(settlement.member)
            self._waiting.pop(settlement.member, None)
            if settlement.what not in ("next", "drop") and settlement.ms:
                retries += settlement.what == "retry"
                self._waiting[settlement.member] = item._replace(wake_ms=now_ms + settlement.ms), retries
        return Settled(now_ms, None, [1] * len(settlements))

    def upsert(self, shard: Shard, definitions: Sequence[EntryDefinition], *, mode: Mode = "") -> list[str]:
        return ["NEW"] * len(definitions)  # the next `refresh` finds them


def _get_wake_ms(item: EntryDefinition) -> int:
    return item.wake_ms or item.point_ms
