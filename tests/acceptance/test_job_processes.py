"""Jobs in real worker processes: killed, stopped, and a Redis that goes away under whoever enqueues."""

import signal
from collections import Counter

import pytest

from django_delayq.compat import TaskResultStatus
from django_delayq.exceptions import JobLost
from tests.acceptance.processes import first_look, stop, wait_for_workers
from tests.acceptance.support import PATIENCE_SECONDS, lines, wait_until, worker
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


def test_a_killed_workers_job_runs_again_after_the_lease_and_has_one_result(broker, tmp_path):
    path, gate = tmp_path / "f", tmp_path / "gate"
    options = {"LEASE_SECONDS": 2, "IDLE_CAP_SECONDS": 60}
    result = tasks.note.enqueue(str(path), "slow", gate=str(gate))
    with worker(**options) as first, worker(**options) as second:
        wait_for_workers(broker, 2)
        wait_until(lambda: lines(path))
        victim, other = (first, second) if first.pid == int(lines(path)[0][2]) else (second, first)
        look = first_look(broker, other.pid)
        victim.kill()
        gate.touch()
        wait_until(lambda: ended(result))
        assert stop(other) == 0
    assert result.status == SUCCESSFUL
    assert [words[0] for words in lines(path)] == ["start", "start", "end"]
    assert not waiting(broker), "a third execution may come"
    again = float(lines(path)[1][3])
    assert again < look.timestamp() + 60, "the end of the lease woke nobody; a regular look found the job"


def test_sigterm_finishes_what_has_started_and_hands_back_the_rest_at_once(broker, tmp_path):
    path = tmp_path / "f"
    results = tasks.note.enqueue_many(((str(path), f"j{n}", 1.0), {}) for n in range(6))
    lease = 2 * PATIENCE_SECONDS  # whose end nothing waits for
    with worker("--threads", "2", LEASE_SECONDS=lease) as process:
        wait_until(lambda: len(lines(path)) >= 2)
        process.send_signal(signal.SIGTERM)
        with worker("--threads", "8", LEASE_SECONDS=lease):
            assert process.wait(PATIENCE_SECONDS) == 0
            wait_until(lambda: ended(*results))
    assert starts(path) == {f"j{n}": 1 for n in range(6)}
    assert {result.status for result in results} == {SUCCESSFUL}
    assert {result.attempts for result in results} == {1}


def test_a_job_that_kills_its_process_each_time_is_lost_and_its_neighbours_are_not(broker, tmp_path):
    path, options = tmp_path / "f", {"LEASE_SECONDS": 3, "MAX_RECLAIMS": 2}
    killer = tasks.end_process.enqueue(str(tmp_path / "killer"))
    neighbours = tasks.note.enqueue_many(((str(path), f"j{n}", 0.05), {}) for n in range(20))
    with worker("--processes", "2", "--threads", "4", **options):
        wait_until(lambda: ended(killer, *neighbours), 30)
    assert (killer.status, killer.errors[-1].exception_class) == (TaskResultStatus.FAILED, JobLost)
    assert "3 times in a row" in killer.errors[-1].traceback
    assert len(lines(tmp_path / "killer")) == 3  # once, and two take-overs
    assert {result.status for result in neighbours} == {SUCCESSFUL}
    assert max(starts(path).values()) <= 3  # beside the killer at most twice: from then on it runs alone


def test_redis_stopped_and_started_under_who_enqueues_loses_nothing(broker, tmp_path):
    folder, path = tmp_path / "aof", tmp_path / "f"
    folder.mkdir()
    with Server(folder, ("--appendfsync", "always")) as server, pointing_at(server.url):
        with worker():
            results = []
            for n in range(60):
                if n == 20:
                    server.kill()
                if n == 40:
                    server.start()
                results.append(tasks.note.enqueue(str(path), f"j{n}"))
            wait_until(lambda: ended(*results), 30)
        assert {result.status for result in results} == {SUCCESSFUL}
        assert set(starts(path)) == {f"j{n}" for n in range(60)}


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
    return any(stats.jobs for stats in broker.stats(broker.shards()))


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
