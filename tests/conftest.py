"""Fixtures of the whole suite: a real Redis or Valkey, and a prefix of its own for each test; which tests are played.

Note [Tiers]
`pytest` plays the default tier: all that has neither the marker `everything` nor `long`. `-m "not long"` plays
everything, the default tier included; `-m long` what takes minutes. All that has real processes is marked `everything`
here, by its folder, but for the tests marked `smoke`. Who names a folder below tests, a file or a test plays all of it
but the long forms. A `-m` of one's own always wins.
"""

import functools
import gc
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# No search minds a slow machine. A random find must not stop an unrelated change: they are random where CI is not set.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("patient", **PATIENT)
hypothesis_settings.register_profile("ci", **PATIENT, derandomize=True, database=None)
hypothesis_settings.load_profile("ci" if os.environ.get("CI") else "patient")

os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "false")

_stack = ExitStack()
#: A client of the server that this process has started for itself alone.
_own_server: Any = None
#: Let everything work as the minimal Redis user of SECURITY.md, who may also do what the tests do by hand.
LOCKED = bool(os.environ.get("DELAYQ_TEST_REDIS_USER"))
TESTS = Path(__file__).parent
#: The folders of tests whose subjects are processes: workers, servers, poolers. See Note [Tiers].
WITH_PROCESSES = {"acceptance", "databases", "engines", "faults", "handover"}
#: What the server of the tests must be, such as "valkey 9.1" or "redis 6.2"; else there is no run.
SERVER_VERSION = os.environ.get("DELAYQ_TEST_SERVER_VERSION", "")
#: What of the environment decides how a run goes.
REPEATING = (
    "CI", "DATABASE_URL", "DELAYQ_SERVER", "DELAYQ_SIMULATION_SEED", "DELAYQ_TEST_REDIS_USER", "DELAYQ_TEST_SHAPE",
    "DELAYQ_TEST_USE_TZ", "PYTEST_ADDOPTS", "TZ",
)  # fmt: skip
BY_HAND = ("~t*x", "~somebody-else-*", "+rpush", "+exists", "+script|flush", "+mset", "+dump", "+config|resetstat")


def pytest_configure(config: pytest.Config) -> None:
    """Start the embedded server, unless DELAYQ_REDIS_URL names one. The settings are loaded by now: tell them.

    DELAYQ_TEST_SHAPE=cluster or =sentinel starts several servers that are one Redis instead. Under pytest-xdist each
    process starts its own, since some tests count what a server is asked.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a background job of a shell has it. What the tests start would inherit it and ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    leads = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if leads and not SERVER_VERSION:
        return
    from django.conf import settings

    shape = os.environ.get("DELAYQ_TEST_SHAPE")
    given = os.environ.get("DELAYQ_REDIS_URL")
    if shape:
        from tests.faults.harness.shapes import SHAPES

        folder = _stack.enter_context(tempfile.TemporaryDirectory(prefix="dq-shape"))
        servers = [node.url for node in _stack.enter_context(SHAPES[shape](Path(folder))).nodes]
        url = settings.CACHES["default"]["LOCATION"]
    elif given:
        url, servers = given, [given]
    else:
        import redis

        from django_delayq.embedded import EmbeddedServer

        global _own_server
        url = _stack.enter_context(EmbeddedServer()).url
        servers = [url]
        _own_server = _stack.enter_context(redis.Redis.from_url(url))
    for server in servers:
        _check_version(server)
    if leads:  # it has looked at the version for all of pytest-xdist's processes, where the error would be a traceback
        _stack.close()
        return
    if LOCKED and (shape or not given):
        url = _lock(url, servers)
    os.environ["DELAYQ_REDIS_URL"] = settings.CACHES["default"]["LOCATION"] = url


def _check_version(server: str) -> None:
    """End the run where DELAYQ_TEST_SERVER_VERSION is set and the server says that it is something else."""
    if not SERVER_VERSION:
        return
    import redis

    with redis.Redis.from_url(server) as admin:
        info = admin.info("server")
    name = info.get("server_name", "redis")
    found = f"{name} {info[f'{name}_version']}"
    if not found.startswith(f"{SERVER_VERSION}."):
        raise pytest.UsageError(f"DELAYQ_TEST_SERVER_VERSION is {SERVER_VERSION}, but the tests' server is {found}.")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After a failure, say what is needed to repeat it: on what it was played."""
    if not terminalreporter.stats.keys() & {"failed", "error"}:
        return
    import django
    from django.db import connection

    given = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name in REPEATING]
    python = ".".join(map(str, sys.version_info[:3]))
    terminalreporter.write_line(
        f"Played with Python {python}, Django {django.__version__}, {connection.vendor}; " + " ".join(given)
    )


def pytest_unconfigure() -> None:
    """Stop what was started."""
    _stack.close()


def _lock(url: str, servers: list[str]) -> str:
    """Make the user on each of these servers, for every prefix of the tests; return the address with the user in it."""
    import redis

    from tests.security import acl

    rules = acl.rules("t*", cluster=os.environ.get("DELAYQ_TEST_SHAPE") == "cluster")
    for server in servers:
        with redis.Redis.from_url(server) as admin:
            acl.make_user(admin, [*rules, *BY_HAND])
    return acl.url_of(url)


def _family(path: Path) -> str:
    """Return the folder of `tests` that a test lies in, wherever the checkout lies."""
    return path.relative_to(TESTS).parts[0]


@pytest.hookimpl(tryfirst=True)  # before pytest's own hook looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what has real processes, and leave out what was not asked for. See Note [Tiers]."""
    for item in items:
        if _family(item.path) in WITH_PROCESSES and not item.get_closest_marker("smoke"):
            item.add_marker("everything")
    if config.option.markexpr:
        return
    here = config.invocation_params.dir
    arguments = (Path(os.path.normpath(here / argument.split("::")[0])) for argument in config.args)
    named = {path for path in arguments if TESTS in path.parents}

    def is_left_out(item: pytest.Item) -> bool:
        if item.get_closest_marker("long"):
            return True
        return bool(item.get_closest_marker("everything")) and named.isdisjoint((item.path, *item.path.parents))

    left_out = [item for item in items if is_left_out(item)]
    items[:] = [item for item in items if not is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays until the end: else each full collection goes through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def web_timeout() -> Iterator[float]:
    """Have web requests wait longer for Redis, since the tests' machine may be busy; return what they wait otherwise.

    And have a worker that listens for hints look more often whether it is to stop: each test with one waits for that.
    And have none that prunes leave the database to others, of which there are none.
    """
    from django_delayq.index import web
    from django_delayq.sync import pruning
    from django_delayq.worker import upkeep

    shipped = web.TIMEOUT_SECONDS
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(web, "TIMEOUT_SECONDS", 3.0)
        patched.setattr(upkeep, "HINT_TIMEOUT_SECONDS", 0.05)
        patched.setattr(pruning, "MOST_REST_SECONDS", 0.0)
        yield shipped


@pytest.fixture(autouse=True, scope="session")
def known_version() -> Iterator[None]:
    """Read redis-py's version once: it searches the installed packages for it at every connection, of thousands."""
    import redis.utils

    read = getattr(redis.utils, "get_lib_version", None)
    with pytest.MonkeyPatch.context() as patched:
        if read is not None:
            patched.setattr(redis.utils, "get_lib_version", functools.cache(read))
        yield


@pytest.fixture(autouse=True)
def nothing_logged() -> None:
    """Have what is logged once in a process be logged once in a test."""
    from django_delayq.calls import side_channels

    side_channels._logged.clear()


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def prefix(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Give each test that touches Django a prefix of its own in Redis, and remove it afterwards.

    A server of this process alone is emptied, in a fraction of the time.
    """
    if _family(request.path) == "unit":
        yield None
        return
    settings = request.getfixturevalue("settings")
    name = f"t{os.getpid()}-{next(_numbers)}"
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": name}
    from django_delayq.index import Broker
    from django_delayq.index.web import forget_broker
    from django_delayq.sync import layout

    layout._known.clear()
    yield name
    if _own_server is not None:
        _own_server.flushdb()
        return
    settings.DELAYQ = {**settings.DELAYQ, "PREFIX": name, "MIRROR": True, "REDIS_IN_TESTS": True}
    forget_broker()
    cleaner = Broker(timeout_seconds=5)
    cleaner.purge()
    cleaner.close()


@pytest.fixture
def broker(prefix: str) -> Iterator[Any]:
    """A broker of the test's prefix."""
    from django_delayq.index import Broker

    made = Broker(timeout_seconds=5, worker="test")
    yield made
    made.close()
