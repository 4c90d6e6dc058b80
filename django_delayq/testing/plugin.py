"""The pytest fixture `delayq`. Only for those who ask for it: `pytest_plugins = ["django_delayq.testing.plugin"]` in
the uppermost conftest.py, or `from django_delayq.testing.plugin import delayq` in any other. Needs pytest-django.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .runner import Runner


@pytest.fixture
def delayq(db: Any) -> Iterator["Runner"]:
    """A `django_delayq.testing.Runner`, with access to the database."""
    from .runner import Runner  # when Django is ready

    with Runner() as runner:
        yield runner
