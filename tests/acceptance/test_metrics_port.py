"""`--metrics`: the ports of the processes of a supervisor."""

import os
import signal
import socket
from contextlib import suppress

import pytest

from tests.acceptance.processes import alive, every_second, processes_of, stop
from tests.acceptance.support import wait_until, worker
from tests.faults.harness.shapes import free_ports
from tests.integration.test_metrics import get, parsed

pytestmark = pytest.mark.django_db(transaction=True)


def told(port, page="/metrics"):
    """Return the samples of a page, none where nobody listens yet."""
    status, text = answers(port, page) or (0, "")
    return parsed(text) if status == 200 else {}


def succeeded(port):
    """Return how many have succeeded there."""
    return sum(
        number
        for (name, labels), number in told(port).items()
        if name == "delayq_outcomes_total" and dict(labels)["outcome"] == "succeeded"
    )


def answers(port, page):
    try:
        return get(port, page)
    except OSError:
        return None


def test_each_process_of_a_supervisor_has_its_port_also_after_it_was_killed(broker):
    first, second = neighbours()
    for n in range(6):
        every_second(f"beat {n}")
    with worker("--metrics", str(first), "--processes", "2", "--threads", "2") as process:
        wait_until(lambda: succeeded(first) and succeeded(second), what="both processes")
        victim = min(processes_of(process))
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not alive({victim}) and len(processes_of(process)) == 2, what="its successor")
        wait_until(lambda: succeeded(first) and succeeded(second), what="both processes again")
        assert answers(first, "/healthz") == answers(second, "/readyz") == (200, "ok\n")
        assert stop(process) == 0


def neighbours():
    """Return two free ports that follow each other."""
    while True:
        (port,) = free_ports(1)
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port, port + 1
