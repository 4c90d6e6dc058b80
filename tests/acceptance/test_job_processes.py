"""Jobs in real worker processes: lost replies to whoever enqueues, and the states in their order."""

from collections import Counter

import pytest

from django_delayq.calls.compat import TaskResultStatus
from tests.acceptance.support import lines, wait_until, worker
from tests.app import tasks
from tests.faults.harness.proxy import Proxy
from tests.faults.harness.servers import Server, pointing_at
from tests.jobs.support import SUCCESSFUL

pytestmark = pytest.mark.django_db(transaction=True)


def ended(*results):
    """Say whether all of these have an end."""
    for result in results:
        result.refresh()
    return all(result.is_finished for result in results)


def starts(path):
    """Count the starts of each text in a file of `note`."""
    return Counter(words[1] for words in lines(path) if words[0] == "start")


@pytest.mark.parametrize("how", [{}, {"silent": True}, {"request": True}], ids=["reset", "silence", "request"])
def test_a_lost_reply_to_enqueue_adds_once(how, broker, tmp_path):
    path = tmp_path / "f"
    with Server() as server, pointing_at(server.url):
        with Proxy(server.socket) as proxy, pointing_at(proxy.url):
            tasks.noop.enqueue()
            proxy.lose("upsert", count=2, **how)
            results = [
                tasks.note.enqueue(str(path), "one"),
                *tasks.note.enqueue_many(((str(path), f"j{n}"), {}) for n in range(3)),
            ]
            assert proxy.lost["upsert"]
        with worker():
            wait_until(lambda: ended(*results), 15)
            with server.broker() as own:
                wait_until(lambda: not waiting(own), 15)
        assert {result.status for result in results} == {SUCCESSFUL}
        assert starts(path) == {"one": 1, "j0": 1, "j1": 1, "j2": 1}


def waiting(broker):
    """Say whether jobs are left."""
    return any(stats.jobs for stats in broker.read_stats(broker.list_shards()))


@pytest.mark.smoke
def test_the_states_of_a_job_come_in_their_order(broker, tmp_path):
    """Whoever polls sees each state in its order, and never an earlier one again."""
    gate, seen = tmp_path / "gate", []

    def ends():
        result.refresh()
        if seen[-1:] != [str(result.status)]:
            seen.append(str(result.status))
        if result.status == TaskResultStatus.RUNNING:
            gate.touch()
        return result.is_finished

    result = tasks.note.enqueue(str(tmp_path / "f"), gate=str(gate))
    assert not ends()
    with worker():
        wait_until(ends)
    assert seen == ["READY", "RUNNING", str(SUCCESSFUL)]
