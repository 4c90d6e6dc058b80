"""Fixtures of the fault suite, and the table at its end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness.table import Row, lines

#: Rows travel in the tests' reports, so that they also arrive from the processes of pytest-xdist.
PROPERTY = "row of the fault table"


@pytest.fixture
def server(prefix: str) -> Iterator[Any]:
    """A server of the test's own, without persistence; this process and the workers it starts use it."""
    from tests.faults.harness.servers import Server, pointing_at

    with Server() as own, pointing_at(own.url):
        yield own


@pytest.fixture
def aof_server(prefix: str, tmp_path: Path) -> Iterator[Any]:
    """As `server`, with an append-only file that is written every second: it keeps its data when it is killed."""
    from tests.faults.harness.servers import Server, pointing_at

    folder = tmp_path / "aof"
    folder.mkdir()
    with Server(folder, ("--appendfsync", "everysec")) as own, pointing_at(own.url):
        yield own


@pytest.fixture
def proxy(server: Any) -> Iterator[Any]:
    """A proxy in front of `server`, for workers started with `redis_url=proxy.url`."""
    from tests.faults.harness.proxy import Proxy

    with Proxy(server.socket) as own:
        yield own


@pytest.fixture
def shards(prefix: str, settings: Any) -> None:
    """Eight shards a queue, so that each of two workers is the first to look at some of them, and gets work."""
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 8}


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """The file in which the tasks of this test leave their executions."""
    from tests.faults.harness.trace import Trace

    return Trace(tmp_path / "trace")


@pytest.fixture
def dense(settings: Any) -> None:
    """Points may come several times a second, so that a test takes few seconds."""
    settings.DELAYQ = {**settings.DELAYQ, "MIN_INTERVAL_SECONDS": 0.1}


@pytest.fixture
def note_row(request: pytest.FixtureRequest) -> Callable[[Row], None]:
    """Add a row to the table, for a test whose fault the oracle's figures do not describe."""
    return lambda row: request.node.user_properties.append((PROPERTY, asdict(row)))


@pytest.fixture
def isolated(settings: Any, server: Any) -> None:
    """The tasks of isolated_tasks.py, which no other test has."""
    from tests.faults.harness.workers import ENDLESS

    modules = ["tasks", "isolated_tasks"]
    options = {"TASK_MODULES": modules, "TIMEOUT_GRACE_SECONDS": 5, "LEASE_SECONDS": ENDLESS}
    settings.DELAYQ = {**settings.DELAYQ, **options}


@pytest.fixture
def worker(isolated: None, tmp_path: Path) -> Iterator[Any]:
    """A worker of isolated tasks."""
    from tests.faults.harness.workers import WorkerProcess

    with WorkerProcess(folder=tmp_path) as process:
        yield process


@pytest.fixture
def report(trace: Any, note_row: Callable[[Row], None]) -> Callable[..., Any]:
    """Wait for the outcomes, note the fault's row for the table, and assert that nothing is missing or doubled."""
    from tests.faults.harness.verdict import decided, row_of

    def add(
        fault: str,
        histories: Sequence[Any],
        *,
        until: datetime | None = None,
        seconds: float | None = None,
        traced: bool = True,
        **measured: Any,
    ) -> Any:
        verdict = decided(histories, trace if traced else None, until=until, seconds=seconds)
        note_row(row_of(fault, verdict, **measured))
        assert verdict.points > 0, "no point came due: nothing was tested"
        assert verdict.clean, verdict.complaints()
        return verdict

    return add


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    calls = (report for report in reports if report.when == "call")
    rows = [Row(**value) for report in calls for name, value in report.user_properties if name == PROPERTY]
    if rows:
        terminalreporter.section("faults")
        for line in lines(rows):
            terminalreporter.write_line(line)
