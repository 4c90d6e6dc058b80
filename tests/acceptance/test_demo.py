"""`manage.py demo` as a new user runs it: in a copy of the sample project, with a server and a database of its own."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.support import ROOT, wait_until
from tests.faults.harness.shapes import free_ports

#: Starts a management command.
Manage = Callable[..., "subprocess.Popen[str]"]
#: Ends what would never end.
PATIENCE_SECONDS = 300.0

JUDGE_AGAIN = """
from shop.demo.report import judge
from django_delayq.models import Run
runs = Run.objects.filter(origin="due", schedule_name="Stock check", claimed_at__isnull=False).order_by("due_at")
start, end = runs[1].due_at, runs.last().due_at
print("as it was:", judge(start, end).complaints)
victim = runs[2]
Run.objects.filter(pk=victim.pk).update(status="running")
print("open:", judge(start, end).complaints)
victim.delete()
print("deleted:", judge(start, end).complaints)
"""

CLOCK_CHANGES = """
from datetime import UTC, datetime
from django_delayq.models import Schedule
from shop.demo.data import clock_change
print("shown:", Schedule.objects.get(name="Clock change").preview(1)[0].annotations)
for month in range(1, 13):
    now = datetime(2027, month, 5, tzinfo=UTC)
    point = Schedule(name="s", created_at=now, effective_from=now, **clock_change(now)).preview(1, now)[0]
    print("one of twelve:", (point.due_at - now).days < 200, point.annotations)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A short directory with a copy of the sample project; the embedded server's directory comes to lie there too."""
    place = Path(tempfile.mkdtemp(prefix="dqa"))
    shutil.copytree(ROOT / "sample_project", place / "p", ignore=shutil.ignore_patterns("db.sqlite3*", "mails"))
    yield place
    for line in processes(place):
        os.kill(int(line.split()[0]), signal.SIGKILL)
    shutil.rmtree(place)


@pytest.fixture
def manage(place: Path) -> Iterator[Manage]:
    """Start a management command of the copy."""
    started: list[subprocess.Popen[str]] = []
    given = {"DELAYQ_REDIS_URL", "DELAYQ_SERVER", "DATABASE_URL"}
    env = {name: value for name, value in os.environ.items() if name not in given}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": str(place)}
    env.pop("DJANGO_SETTINGS_MODULE", None)

    def start(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, str(place / "p" / "manage.py"), *arguments],
            cwd=place,
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def processes(place: Path) -> list[str]:
    """Return the processes with the copy's path in their command line: demo, worker, web, watchdog, server."""
    listing = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listing.splitlines() if str(place) in line and line.split()[1][0] != "Z"]


def nothing_is_left(place: Path) -> bool:
    """No process, and no directory of the embedded server."""
    return not processes(place) and [path.name for path in place.iterdir()] == ["p"]


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Read lines up to the one with the text; pytest's own time limit is the caller's patience."""
    seen = ""
    for line in process.stdout or ():
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came:\n{seen}")


def listens(port: int) -> bool:
    """Say whether anybody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_session_of_some_seconds_ends_by_itself_and_every_due_point_has_its_outcome(
    manage: Manage, place: Path
) -> None:
    demo = manage("demo", "--seconds", "12", "--no-web")
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, output
    assert "Traceback" not in output
    assert "(delayq." not in output  # its own Valkey is one that nobody has to be warned of
    total = re.search(r"^all +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+)$", output, re.MULTILINE)
    assert total, output
    due, succeeded, failed, skipped, lost, still_open = map(int, total.groups()[:6])
    assert due >= 25
    assert due == succeeded + failed + skipped
    assert (lost, still_open) == (0, 0)
    assert "Flash sale" in output  # the one-off
    assert any((place / "p" / "mails").iterdir())
    assert nothing_is_left(place)

    # Would it have noticed? And a second session on the same database, where points were missed meanwhile.
    again, _ = manage("shell", "-c", JUDGE_AGAIN + CLOCK_CHANGES).communicate(timeout=PATIENCE_SECONDS)
    assert "as it was: []" in again, again
    assert re.search(r"open: \['Stock check: due .* UTC has no outcome yet'\]", again)
    assert re.search(r"deleted: \['Stock check: due .* UTC has no run in the ledger'\]", again)
    assert re.search(r"shown: .*(does not exist on this day, runs at|first of two)", again), again
    assert len(re.findall(r"one of twelve: True .*(does not exist on this day, runs|first of two)", again)) == 12
    second = manage("demo", "--seconds", "4", "--no-web")
    output, _ = second.communicate(timeout=PATIENCE_SECONDS)
    assert second.returncode == 0, output
    assert nothing_is_left(place)


def test_ctrl_c_ends_everything_without_a_traceback(manage: Manage, place: Path) -> None:
    (port,) = free_ports(1)
    demo = manage("demo", "--port", str(port))
    output = read_until(demo, "Ctrl-C ends everything")
    assert f"http://127.0.0.1:{port}/admin/" in output
    read_until(demo, "failed    Exchange rates")  # every third run; nothing else of the demo fails
    wait_until(lambda: listens(port), PATIENCE_SECONDS, "the web server")
    for page in ("", "admin/login/"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=PATIENCE_SECONDS) as answer:
            assert answer.status == 200
    os.killpg(demo.pid, signal.SIGINT)  # what the terminal does
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, output
    assert "Traceback" not in output
    assert "Shoppers (simulation)" in output
    assert nothing_is_left(place)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)


def test_kill_9_of_the_demo_leaves_nothing_either(manage: Manage, place: Path) -> None:
    demo = manage("demo", "--port", str(free_ports(1)[0]))
    read_until(demo, "Ctrl-C ends everything")
    assert len(processes(place)) >= 5
    demo.kill()
    wait_until(lambda: nothing_is_left(place), PATIENCE_SECONDS, "the end of worker, web server and embedded server")


def test_a_port_that_is_taken_is_named(manage: Manage, place: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        demo = manage("demo", "--port", str(port))
        output, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 1
    assert f"Port {port} is taken" in output
    assert "Traceback" not in output
    assert nothing_is_left(place)


def test_a_worker_that_dies_is_reported_with_its_last_lines(manage: Manage, place: Path) -> None:
    demo = manage("demo", "--no-web")
    read_until(demo, "Ctrl-C ends everything")
    (worker,) = [line for line in processes(place) if "delayq_worker" in line]
    os.kill(int(worker.split()[0]), signal.SIGKILL)
    output, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 1
    assert re.search(r"The worker has ended with code -9. Its last lines:\n +2\d\d\d-", output), output
    assert "Traceback" not in output
    assert nothing_is_left(place)
