"""The app of the tests: makes the places at which they end, stop or delay a process."""

from django.apps import AppConfig

from tests import failpoints


class TestsConfig(AppConfig):
    """See `tests/failpoints.py`."""

    name = "tests.app"

    def ready(self) -> None:
        """Wrap what is loaded by now."""
        failpoints.install()
