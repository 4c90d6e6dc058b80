"""For tests of projects that use this package: schedules and jobs without Redis, workers or waiting.

`Runner` is the entry point; `django_delayq.testing.plugin` provides it as a pytest fixture.
"""

from .assertions import next_points
from .runner import Runner

__all__ = ["Runner", "next_points"]
