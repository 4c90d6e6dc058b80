"""For the tests of projects that use this package: schedules and jobs, without Redis, workers and waiting.

`Runner` is all of it; `django_delayq.testing.plugin` has it as a pytest fixture.
"""

from .assertions import next_points
from .runner import Runner

__all__ = ["Runner", "next_points"]
