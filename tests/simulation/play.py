"""Plays a history, and cuts one that fails down to the steps that it takes. Draws nothing."""

import time
from dataclasses import replace

from .faults import Violation
from .plan import Plan
from .world import World

#: A cut takes so long at most; then the shortest history so far is told.
SHRINK_SECONDS = 120.0


def play(stage, history: Plan) -> Exception | None:
    """Play a history to its end; return what broke, None where all is well."""
    world = World(stage)
    try:
        for step in history.steps:
            _do(world, step)
        world.finish()
    except (Violation, Exception) as error:
        return error
    return None


def examine(stage, history: Plan) -> str | None:
    """Play a history; return what broke with the shortest history that breaks the same, None where all is well."""
    error = play(stage, history)
    if error is None:
        return None
    short = shrink(stage, history, name_of(error))
    return (
        f"seed {history.seed} breaks a promise. DELAYQ_SIMULATION_SEED={history.seed} plays it again.\n"
        f"{error!r}\n"
        f"The shortest history that breaks the same, {len(short.steps)} of {len(history.steps)} steps:\n{short}"
    )


#: Steps for which a worker is chosen among those that can do them.
NEEDS = {
    "begin": lambda stepped: stepped.slots.entries,
    "release": lambda stepped: stepped.slots.entries,
    "end": lambda stepped: stepped.slots.begun,
    "renew": lambda stepped: stepped.has_work,
    "flush": lambda stepped: stepped.unwritten,
}


def _do(world, step) -> None:
    arguments = dict(step.arguments)
    if step.name in NEEDS:
        able = [stepped.number for stepped in world.workers if NEEDS[step.name](stepped)]
        if not able:
            return
        arguments["w"] = able[arguments["w"] % len(able)]
    if step.fault is not None:
        arguments["fault"] = replace(step.fault, passed=0)
    getattr(world, step.name)(**arguments)


def shrink(stage, history: Plan, name: str) -> Plan:
    """Return a shorter history that breaks the same: no step and no fault of it can be left out alone."""
    until = time.monotonic() + SHRINK_SECONDS
    steps = list(history.steps)

    def breaks(candidate) -> bool:
        error = play(stage, Plan(history.seed, candidate))
        return error is not None and name_of(error) == name

    size = max(1, len(steps) // 2)
    while True:
        at, shorter = 0, False
        while at < len(steps) and time.monotonic() < until:
            candidate = steps[:at] + steps[at + size :]
            if breaks(candidate):
                steps, shorter = candidate, True
            else:
                at += size
        if time.monotonic() >= until or (size == 1 and not shorter):
            break
        size = max(1, size // 2)
    for at, step in enumerate(steps):
        for simpler in step.simpler():
            if time.monotonic() < until and breaks([*steps[:at], simpler, *steps[at + 1 :]]):
                steps[at] = simpler
    return Plan(history.seed, steps)


def name_of(error: Exception) -> str:
    """Return what two histories must have in common to be called the same."""
    return error.name if isinstance(error, Violation) else type(error).__name__
