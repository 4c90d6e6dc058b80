"""Every rule that is taken away is missed: each mutant is found by its history and the invariant it names."""

import inspect

import pytest

from . import histories, histories_jobs, histories_lossy
from .faults import Violation
from .mutants import MUTANTS
from .stage import Stage
from .world import World

HISTORIES = [
    function
    for module in (histories, histories_lossy, histories_jobs)
    for function in vars(module).values()
    if inspect.isfunction(function) and function.__module__ == module.__name__ and function is not histories.due
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_a_history_comes_to_a_good_end(stage, history):
    world = World(stage)
    history(world)
    world.finish()


@pytest.mark.everything
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(transactional_db, monkeypatch, mutant):
    mutant.apply(monkeypatch)
    stage = Stage(monkeypatch, mutate=mutant.script)
    try:
        with pytest.raises(Violation) as found:
            world = World(stage)
            mutant.history(world)
            world.finish()
    finally:
        stage.close()
    assert found.value.name.startswith(mutant.broken)
