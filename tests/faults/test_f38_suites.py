"""F38: an ordinary test suite of a project beside a live server of development: nothing of it reaches Redis."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_delayq.embedded import EmbeddedServer
from tests.acceptance.support import PATIENCE_SECONDS, ROOT

SUITES = {
    "django": ["manage.py", "test"],
    "parallel": ["manage.py", "test", "--parallel", "2"],
    "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
}
NOT_MIRRORED = {"MIRROR": False}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, in a folder of its own, with the tables of its database of development."""
    folder = Path(shutil.copytree(Path(__file__).parent / "project", tmp_path_factory.mktemp("f38") / "project"))
    assert run(folder, "redis://127.0.0.1:1/0", "manage.py", "migrate", DELAYQ_NO_REDIS="1").returncode == 0
    return folder


@pytest.fixture
def live() -> Iterator[EmbeddedServer]:
    """The server of development."""
    with EmbeddedServer() as started:
        yield started


def run(folder: Path, url: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the project to its end."""
    ours = ("DELAYQ_", "DJANGO_", "PYTEST_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), "PROJECT_REDIS": url, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def seen_of(client: Any) -> tuple[int, dict[bytes, bytes]]:
    """Return how many connections the server has had, and all that it holds."""
    return client.info("stats")["total_connections_received"], {key: client.dump(key) for key in client.scan_iter()}


@pytest.mark.parametrize(
    ("suite", "prefix", "options"),
    [
        pytest.param("django", "fresh", {}, marks=pytest.mark.smoke),
        ("parallel", "claimed", {}),
        pytest.param("pytest", "claimed", {}, marks=pytest.mark.long),
        pytest.param("django", "claimed", NOT_MIRRORED, marks=pytest.mark.long),
        ("pytest", "fresh", NOT_MIRRORED),
    ],
)
def test_f38_a_suite_beside_a_live_server_does_not_even_connect(live, project, suite, prefix, options):
    if prefix == "claimed":
        for command in (["migrate"], ["delayq_sync"]):
            assert run(project, live.url, "manage.py", *command).returncode == 0
    with redis.Redis.from_url(live.url) as client:
        before = seen_of(client)
        assert (prefix == "claimed") == bool(before[1])
        done = run(project, live.url, *SUITES[suite], PROJECT_DELAYQ=json.dumps(options))
        assert seen_of(client) == before
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("environment", "reaches"),
    [({}, True), ({"PROJECT_DELAYQ": json.dumps(NOT_MIRRORED)}, False), ({"DELAYQ_NO_REDIS": "1"}, False)],
)
def test_f38_a_process_of_its_own_enqueues_into_redis_unless_it_is_told_not_to(live, project, environment, reaches):
    with redis.Redis.from_url(live.url) as client:
        before = seen_of(client)
        done = run(project, live.url, "manage.py", "place_order", **environment)
        assert (seen_of(client) != before) == reaches
    assert done.stdout.strip() == "READY", done.stderr
