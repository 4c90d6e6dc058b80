"""Moves a prefix to another number of shards while workers run.

Note [Changing the number of shards]
A member's shard follows from its name and the number of shards, so another number moves most members. Two workers that
count differently would look for a member in two shards; so the layout in Redis changes first, and with it each shard's
epoch: whoever works with the former number finds out at its next claim, or with its next heartbeat, refuses and drains.
What it still executes it records and settles where it was. Then each member leaves its former shard before it enters
its new one, as a schedule that is moved to another queue does: while it is leased it stays, so that no point is held in
two of them. Workers with the new number hand back what they find in a former shard, for it to be moved
(`worker/dispatch.py`). What is due waits for the end of its move, the work of a page.
The layout keeps the former numbers until all is moved. A move that was interrupted is finished by the next one; until
then what is on its way is brought back by the next full sweep of any worker, which the beginning of the move makes due,
and `delayq_status` tells what to do.
"""

import secrets
import time
from collections.abc import Callable, Sequence

from .. import chain, ledger
from ..broker import Broker, Shard
from ..models.run import OPEN
from .compare import compare
from .jobs import move_jobs, move_results
from .layout import other_shards, store_layout
from .read import queues_of
from .rebuild import Build
from .runs import put_back
from .turn import TTL_MS, sweep_now
from .write import remove_whole

#: Between two looks at what is still leased.
PAUSE_SECONDS = 0.5
#: How the mark begins that keeps sweeps away; it tells that a move is under way, and ends with who makes it.
MARK = "reshard:"


def reshard(
    broker: Broker, *, say: Callable[[str], object], pause: Callable[[float], object] = time.sleep
) -> dict[str, int]:
    """Move everything to the number of shards that the settings say; return the members moved per queue.

    Waits for what is executed at this moment by workers that count differently. `say` is told what goes on.
    See Note [Changing the number of shards].

    Raises:
        ForeignLayout: The prefix belongs to another database, or a queue that is not ours is in use: see `layout.py`.
        BrokerError: Redis failed on the way; the next call goes on.
    """
    former = other_shards(broker)
    if not former:
        return {}
    shards = [Shard(queue, number) for queue, count in former.items() for number in range(count)]
    build = Build(broker, broker.shards(former))  # first: a new worker must not find these shards flushed
    token = MARK + secrets.token_hex(8)
    broker.note_sweep(None)
    broker.begin_sweep(token, ttl_ms=TTL_MS)
    store_layout(broker, former=former)
    broker.renew_epochs(shards)

    def keep_marks() -> None:
        build.go_on()
        if not broker.keep_sweep(token, ttl_ms=TTL_MS):  # flushed, or a worker was faster at the beginning
            broker.begin_sweep(token, ttl_ms=TTL_MS)

    moved = dict.fromkeys(former, 0)
    try:
        while leased := _move_entries(broker, shards, moved, keep_marks) + move_jobs(broker, shards, moved):
            say(f"{leased} are being executed where they were; waiting for their ends.")
            pause(PAUSE_SECONDS)
            keep_marks()
        move_results(broker, former)
        build.finish()
        broker.drop([shard for shard in shards if shard.number >= broker.config.shard_count(shard.queue)])
        store_layout(broker)
        sweep_now(broker)
    finally:
        broker.end_sweep(token)
    return moved


def under_way(broker: Broker) -> bool:
    """Say whether a move is being made; one that was killed counts for half a minute more.

    Raises:
        BrokerError: Redis does not answer.
    """
    return (broker.sweep_mark() or "").startswith(MARK)


def _move_entries(
    broker: Broker, shards: Sequence[Shard], moved: dict[str, int], keep_marks: Callable[[], None]
) -> int:
    """Move the entries of schedules and runs, and count them in `moved`; return how many stay, being leased."""
    leased = 0
    for shard in shards:
        for page in broker.scan(shard):
            members = [member for member in sorted(page) if chain.parse_member(member) is not None]
            wrong = [member for member in members if broker.shard_of(member, shard.queue) != shard]
            if wrong:
                left = remove_whole(broker, shard, wrong)
                _enter(broker, left)
                moved[shard.queue] += len(left)
                leased += len(wrong) - len(left)
                keep_marks()
    return leased


def _enter(broker: Broker, members: list[str]) -> None:
    """Mirror what these members stand for, where it belongs."""
    parsed = [item for item in map(chain.parse_member, members) if item is not None]
    compare(broker, dict(queues_of(pk__in=[pk for kind, pk in parsed if kind == "s"])))
    runs = ledger.load_runs([pk for kind, pk in parsed if kind == "r"])
    put_back(broker, [run for run in runs.values() if run.status in OPEN])
