"""Fixtures of the process tests."""

import pytest

from tests.acceptance.processes import SITE


@pytest.fixture
def fault(tmp_path):
    """A file whose Python text runs first in every process that is started with `environment(fault)`."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    return tmp_path / "fault"
