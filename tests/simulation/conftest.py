"""The stage on which the tests of this folder play their histories."""

import pytest

from .stage import Stage


@pytest.fixture
def stage(transactional_db, monkeypatch):
    """Set up everything that the histories of one test share."""
    made = Stage(monkeypatch)
    yield made
    made.close()
