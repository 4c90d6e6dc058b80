"""Random histories of the real scripts and the real worker on a real server, in two modes; see machine.py.

By default the same histories each time, so that a change is judged by them alone. With DELAYQ_MODEL_MINUTES=20 each
mode plays new ones for so long; what it finds is printed as steps. Shrinking takes minutes: DELAYQ_MODEL_SHRINK=0
leaves it out.
"""

import os
import time

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import Lossy, Strict

MINUTES = float(os.environ.get("DELAYQ_MODEL_MINUTES", "0"))
PHASES = [Phase.generate] if os.environ.get("DELAYQ_MODEL_SHRINK") == "0" else [Phase.generate, Phase.shrink]
HISTORIES, STEPS = 100, 40
#: What the histories must come to, or they would prove little. Counted in `Stage.seen`.
COMMON = ("recorded", "refused", "taken over", "handed over", "late", "killed", "attempt failed")
RARE = {Strict: ("stretch left by an edit", "edited under a lease"), Lossy: ("rebuilt", "wound back", "restored")}


def play(machine, **options):
    """Play histories with the settings of both forms."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
            **options,
        ),
    )


@pytest.mark.parametrize("mode", [Strict, Lossy])
def test_no_history_breaks_a_promise(stage, mode, capsys):
    machine = type(mode.__name__, (mode,), {"stage": stage})
    began = time.monotonic()
    play(machine, derandomize=not MINUTES)
    while time.monotonic() - began < MINUTES * 60:
        play(machine, derandomize=False)
    with capsys.disabled():
        seconds = time.monotonic() - began
        print(f"\n{mode.__name__}: {stage.summary(seconds)}")
    missing = [name for name in (*COMMON, *RARE[mode]) if not stage.seen[name]]
    assert not missing, f"no history came to: {', '.join(missing)}"
