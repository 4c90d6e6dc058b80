"""The app of the tests: makes the places at which they end, stop or delay a process, and lets them set constants."""

from dataclasses import fields

from django.apps import AppConfig

from django_delayq.conf import Config, rules
from tests import failpoints


class TestsConfig(AppConfig):
    """See `tests/failpoints.py`."""

    name = "tests.app"

    def ready(self) -> None:
        """Wrap what is loaded by now."""
        failpoints.install()
        let_constants_be_set()


def let_constants_be_set():
    """Have DELAYQ take the constants of `Config` too, in the processes of tests only."""
    strict, names = rules.read_settings, {item.name.upper() for item in fields(Config) if not item.metadata}

    def read_settings(cls, raw, name):
        if name != "DELAYQ" or not isinstance(raw, dict):
            return strict(cls, raw, name)
        settings = {key: value for key, value in raw.items() if key not in names}
        return strict(cls, settings, name) | {key.lower(): raw[key] for key in raw.keys() - settings.keys()}

    rules.read_settings = read_settings
