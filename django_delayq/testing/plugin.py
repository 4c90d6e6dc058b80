"""The pytest fixture `delayq`; needs pytest-django. Enable it with `pytest_plugins = ["django_delayq.testing.plugin"]`
in the top-level conftest.py, or with `from django_delayq.testing.plugin import delayq` in another one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .runner import Runner


@pytest.fixture
def delayq(db: Any) -> Iterator["Runner"]:
    """A `django_delayq.testing.Runner`, with access to the database."""
    from .runner import Runner  # Django must be ready

    with Runner() as runner:
        yield runner
