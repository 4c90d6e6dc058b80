"""Fixtures of the whole suite: a real Redis or Valkey, and a prefix of its own for each test."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "false")

_server: Any = None


def pytest_configure() -> None:
    """Start the embedded server, unless DELAYQ_REDIS_URL names one. The settings are loaded by now: tell them."""
    global _server
    if not os.environ.get("DELAYQ_REDIS_URL"):
        from django_delayq.embedded import EmbeddedServer

        _server = EmbeddedServer()
        _server.start()
        os.environ["DELAYQ_REDIS_URL"] = _server.url
    from django.conf import settings

    settings.CACHES["default"]["LOCATION"] = os.environ["DELAYQ_REDIS_URL"]


def pytest_unconfigure() -> None:
    """Stop what was started."""
    if _server is not None:
        _server.stop()


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def prefix(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Give each test that touches Django a prefix of its own in Redis, and remove it afterwards."""
    if "unit" in str(request.path):
        yield None
        return
    settings = request.getfixturevalue("settings")
    name = f"t{os.getpid()}-{next(_numbers)}"
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": name}
    from django_delayq.broker import Broker
    from django_delayq.mirror.fast import forget_broker
    from django_delayq.mirror.layout import forget_fingerprints

    forget_fingerprints()
    yield name
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": name}
    forget_broker()
    cleaner = Broker(timeout_seconds=5)
    cleaner.purge()
    cleaner.close()


@pytest.fixture
def broker(prefix: str) -> Iterator[Any]:
    """A broker of the test's prefix."""
    from django_delayq.broker import Broker

    made = Broker(timeout_seconds=5, worker="test")
    yield made
    made.close()
