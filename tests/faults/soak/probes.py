"""One fault alone, after everything has calmed down: how long do the points that it hit take to go on?"""

import re
import time

from django_delayq.index import Shard, keys
from django_delayq.index.broker import decode_text
from django_delayq.ledger.chain import parse_member
from django_delayq.models import Run
from django_delayq.recurrence import from_ms, to_ms
from tests.acceptance.support import wait_until
from tests.faults.harness.oracle import CLOSED
from tests.faults.harness.workers import WorkerProcess

from .arena import Arena, Event

Point = tuple[int, int]
#: What a worker that drains must not exceed until others have begun what it had not.
HAND_OVER_SECONDS = 1.0
#: For how long to look for a worker that has claimed more than it runs.
LOOK_SECONDS = 2.0


def probe_kill(arena: Arena) -> None:
    """kill -9 a worker: what it held is begun elsewhere at most a lease and a second later."""
    if not arena.mortal():
        return
    victim = arena.chance.choice(arena.mortal())
    event = arena.note("kill -9 worker, alone")
    died = victim.kill()
    event.limit = arena.lease_seconds + 1
    held = _held(arena, victim) | {item.point for item in arena.trace.running_in(victim.pid)}
    held -= _recorded_by(victim, held)
    _wait_for_recovery(arena, event, victim, held, died)


def probe_drain(arena: Arena) -> None:
    """SIGTERM a worker: what it had not begun is begun elsewhere within a second."""
    victim, held = _busiest(arena)
    if victim is None:
        return
    event = arena.note("SIGTERM worker, alone")
    told = victim.term()
    event.limit = HAND_OVER_SECONDS
    victim.wait()
    begun = {item.point for item in arena.trace.executions() if item.pid == victim.pid}
    _wait_for_recovery(arena, event, victim, held - begun - _recorded_by(victim, held), told)


PROBES = (probe_kill, probe_drain)


def _wait_for_recovery(arena: Arena, event: Event, victim: WorkerProcess, points: set[Point], moment: float) -> None:
    """Note the longest time until one of these points was begun (or skipped) elsewhere, once all of them were."""

    def recovered() -> bool:
        arena.pass_time(0.2)
        event.recovery = _recovery(arena, victim, points, moment)
        return event.recovery != float("inf")

    wait_until(recovered, what=f"others to go on after {event.kind}")
    event.ended = time.time()


def _busiest(arena: Arena) -> tuple[WorkerProcess | None, set[Point]]:
    """Return a worker that holds what it has not begun, with that; after some seconds in vain, any worker."""
    victim, held = None, set()
    end = time.monotonic() + LOOK_SECONDS
    while arena.mortal() and time.monotonic() < end:
        for victim in arena.mortal():
            held = _held(arena, victim)
            held -= {item.point for item in arena.trace.executions() if item.pid == victim.pid}
            if held:
                return victim, held
        time.sleep(0.005)  # between two looks at all of them
    return victim, held


def _held(arena: Arena, victim: WorkerProcess) -> set[Point]:
    """Return the due points whose leases are those of the worker's last claim, as its journal has it."""
    found: set[Point] = set()
    with arena.server.broker() as broker:
        prefix = broker.config.prefix
        for place in broker.list_shards():
            names = keys.build_keys(prefix, place, victim.name)
            match = re.match(r"(\d+) (\S+) ?(.*)$", decode_text(broker.client.get(names["journal"]) or b""))
            members = [word[1:] for word in match[3].split()] if match else []
            if match is None or not members:
                continue
            fences = broker.client.hmget(names["lease"], members)
            points = broker.client.hmget(names["point"], members)
            for member, fence, point in zip(members, fences, points, strict=True):
                if fence is not None and point is not None and decode_text(fence) == match[2]:
                    found |= _point_of(member, int(point), place)
    return found


def _point_of(member: str, point_ms: int, place: Shard) -> set[Point]:
    parsed = parse_member(member)
    if parsed is None:
        return set()
    if parsed[0] == "s":
        return {(parsed[1], point_ms)}
    return {(run.schedule_id, to_ms(run.due_at)) for run in Run.objects.filter(pk=parsed[1])}


def _rows(points: set[Point]) -> dict[Point, Run]:
    rows = Run.objects.filter(schedule_id__in={pk for pk, _ in points}, due_at__in={from_ms(ms) for _, ms in points})
    return {(row.schedule_id, to_ms(row.due_at)): row for row in rows}


def _recorded_by(worker: WorkerProcess, points: set[Point]) -> set[Point]:
    """Return those that the worker itself had recorded: they were only not settled yet."""
    return {point for point, row in _rows(points).items() if row.worker == worker.name and row.status in CLOSED}


def _recovery(arena: Arena, victim: WorkerProcess, points: set[Point], moment: float) -> float | None:
    """Return the longest time until one of these points was begun (or skipped) elsewhere; None without points."""
    delays: dict[Point, float] = {}
    for item in arena.trace.executions():
        if item.point in points and item.began >= moment and item.pid != victim.pid:
            delays.setdefault(item.point, item.began - moment)
    for point, row in _rows(points - delays.keys()).items():
        if row.claimed_at is not None and row.claimed_at.timestamp() > moment:
            delays[point] = row.claimed_at.timestamp() - moment
        elif row.status in CLOSED:  # somebody else had decided it already
            points = points - {point}
    for pk, ms in points - delays.keys():  # one of a stretch that was skipped has no row of its own
        point = from_ms(ms)
        row = Run.objects.filter(schedule_id=pk, due_at__lt=point, last_due_at__gte=point).first()
        if row is not None:
            delays[pk, ms] = max(0.0, row.created_at.timestamp() - moment)
    return max((delays.get(point, float("inf")) for point in points), default=None)
