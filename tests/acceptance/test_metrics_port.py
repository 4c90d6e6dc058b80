"""`--metrics`: one port of a real worker, and one of a supervisor that speaks for all its processes."""

import os
import signal
import socket
import urllib.request

import pytest

from tests.acceptance.processes import alive, every_second, processes_of, stop
from tests.acceptance.support import output_of, wait_until, worker
from tests.faults.harness.shapes import free_ports
from tests.integration.test_metrics import get, parsed

pytestmark = pytest.mark.django_db(transaction=True)


def told(port, page="/metrics"):
    """Return the samples of a page, none where nobody listens yet."""
    status, text = answers(port, page) or (0, "")
    return parsed(text) if status == 200 else {}


def succeeded(port):
    """Return how many have succeeded, by the number of the process."""
    found = {}
    for (name, labels), number in told(port).items():
        if name == "delayq_outcomes_total" and dict(labels)["outcome"] == "succeeded":
            process = dict(labels).get("process", "")
            found[process] = found.get(process, 0) + number
    return found


def answers(port, page):
    try:
        return get(port, page)
    except OSError:
        return None


def test_a_worker_has_one_port_until_it_ends(broker):
    (port,) = free_ports(1)
    every_second()
    with worker("--metrics", str(port)) as process:
        wait_until(lambda: sum(succeeded(port).values()) >= 2)
        assert answers(port, "/healthz") == answers(port, "/readyz") == (200, "ok\n")
        assert ("delayq_up", frozenset({("service", "redis")})) in told(port, "/fleet")
        assert stop(process) == 0
        assert answers(port, "/healthz") is None


def test_a_supervisor_has_one_port_for_all_its_processes_also_after_one_was_killed(broker):
    (port,) = free_ports(1)
    for n in range(6):
        every_second(f"beat {n}")
    with worker("--metrics", str(port), "--processes", "2", "--threads", "2") as process:
        wait_until(lambda: succeeded(port).keys() == {"1", "2"}, what="both processes")
        assert answers(port, "/healthz") == answers(port, "/readyz") == (200, "ok\n")
        found = told(port)
        for number in ("1", "2"):
            assert found["delayq_worker_threads", frozenset({("process", number)})] == 2
        assert any(name == "process_resident_memory_bytes" for name, _ in found)
        assert ("delayq_up", frozenset({("service", "redis")})) in told(port, "/fleet")
        before, (victim, *_) = processes_of(process), sorted(processes_of(process))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not alive({victim}))
        assert answers(port, "/healthz")[0] == 200
        wait_until(lambda: len(processes_of(process) - before) == 1, what="its successor")
        wait_until(lambda: succeeded(port).keys() == {"1", "2"}, what="both processes again")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: not alive(before), what="all to be replaced")
        wait_until(lambda: succeeded(port).keys() == {"1", "2"}, what="the new ones")
        assert stop(process) == 0


def test_a_taken_port_ends_a_supervisor_with_the_reason(broker):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with worker("--metrics", str(port), "--processes", "2") as process:
            assert process.wait(60) != 0
            assert f"cannot listen on 127.0.0.1:{port}" in output_of(process)


def test_a_process_that_becomes_a_fresh_one_has_its_port_again(broker):
    (port,) = free_ports(1)
    every_second()
    with worker("--metrics", str(port), "--max-runs-per-process", "2", cold=True) as process:
        wait_until(lambda: "starts afresh" in output_of(process))
        wait_until(lambda: sum(succeeded(port).values()) >= 1, what="the fresh one's port")
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10).status == 200
        assert stop(process) == 0
