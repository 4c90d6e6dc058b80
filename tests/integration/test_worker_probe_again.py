"""A worker looks again at a server that is another than before: restarted, or a replica in a primary's place."""

import logging
import re
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest

from django_delayq.index import probe
from django_delayq.index.probe import UnfitServer
from django_delayq.models import Run
from django_delayq.worker import upkeep
from django_delayq.worker.options import OK
from tests.acceptance.support import wait_until
from tests.faults.harness.proxy import Proxy
from tests.faults.harness.servers import Server, pointing_at
from tests.faults.harness.shapes import Node, free_ports
from tests.integration.mirroring import Running, schedule
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)
EVICTING = ("--maxmemory-policy", "allkeys-lru")


@pytest.fixture
def server(prefix):
    """A server of the test's own."""
    with Server() as own:
        yield own


@pytest.fixture
def looks(monkeypatch):
    """The looks at servers that were taken, one after the other."""
    taken, look = [], probe.look
    monkeypatch.setattr(probe, "look", lambda broker: taken.append(look(broker)) or taken[-1])
    return taken


@contextmanager
def working(monkeypatch):
    """Run a worker in a thread whose start is over: what fails from then on, its loop sees. Or it has ended."""
    monkeypatch.setattr(upkeep, "HEARTBEAT_SECONDS", 0.2)
    with Running(queues=("default", "mail"), threads=1) as running:
        wait_until(lambda: running.status is not None or running.worker.upkeep._threads)
        yield running


def beats(worker, count):
    """Wait for so many heartbeats more: on another server there may be none yet."""
    seen = set()
    name = worker.options.name
    wait_until(lambda: seen.add(worker.broker.read_workers().get(name, (None, ""))[0]) or len(seen - {None}) > count)


def test_a_worker_ends_its_runs_and_itself_where_a_server_that_evicts_has_taken_the_place(
    server, monkeypatch, tmp_path
):
    with Server(extra_args=EVICTING) as other, Proxy(server.socket) as proxy, pointing_at(proxy.url):
        with working(monkeypatch) as running:
            path, gate = tmp_path / "note", tmp_path / "gate"
            note = {"task": "tests.app.tasks.note", "kwargs": {"path": str(path), "gate": str(gate)}}
            row = schedule(kind="every", cron="", every=timedelta(days=1), **note)
            make_due(running.worker.broker, row)
            wait_until(path.exists)
            proxy.lead_to(other.socket)
            wait_until(lambda: running.worker.stopping)
            gate.touch()
            running.ended()
        assert isinstance(running.status, UnfitServer)
        assert re.search("maxmemory-policy 'allkeys-lru'.*Set it to noeviction", str(running.status))
    assert [run.status for run in Run.objects.filter(schedule=row)] == ["succeeded"]


def test_a_worker_refuses_a_replica_that_evicts_once_it_is_the_primary_although_it_has_all_entries(
    prefix, tmp_path, monkeypatch
):
    first, second = (Node(tmp_path / f"node{port}", port) for port in free_ports(2))
    with ExitStack() as stack:
        for node in (first, second):
            node.start()
            stack.callback(node.stop)
        second.call("REPLICAOF", "127.0.0.1", first.port)
        second.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        proxy = stack.enter_context(Proxy(("127.0.0.1", first.port)))
        stack.enter_context(pointing_at(proxy.url))
        running = stack.enter_context(working(monkeypatch))
        wait_until(lambda: second.call("DBSIZE") > 3)  # layout, workers, epochs
        second.call("REPLICAOF", "NO", "ONE")
        proxy.lead_to(("127.0.0.1", second.port))
        assert isinstance(running.ended(), UnfitServer)


def test_a_worker_goes_on_where_the_other_server_is_fit_and_looks_at_it_once(server, monkeypatch, looks):
    with Server() as other, Proxy(server.socket) as proxy, pointing_at(proxy.url):
        with working(monkeypatch) as running:
            proxy.lead_to(other.socket)
            wait_until(lambda: len(looks) == 2)
            beats(running.worker, 3)
        assert running.status == OK
    assert len({each.about["run_id"] for taken in looks for each in taken}) == len(looks) == 2


def test_what_was_warned_of_is_not_said_again_and_what_is_new_is(server, monkeypatch, looks, caplog):
    warned = probe.Finding("delayq.W003", "Known.", "")
    found = [[warned], [warned, probe.Finding("delayq.W002", "New.", "")]]
    monkeypatch.setattr(probe, "find_problems", lambda _: found[len(looks) - 1])
    with Server() as other, Proxy(server.socket) as proxy, pointing_at(proxy.url), working(monkeypatch):
        proxy.lead_to(other.socket)
        wait_until(lambda: len(looks) == 2)
        wait_until(lambda: "New." in caplog.text)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text for text in told if "W00" in text] == ["Known.  (delayq.W003)", "New.  (delayq.W002)"]


def test_the_same_server_is_not_looked_at_again_and_costs_two_questions_a_heartbeat(server, monkeypatch, looks):
    with pointing_at(server.url), working(monkeypatch) as running, server.broker() as broker:
        wait_until(lambda: broker.read_note("swept"))
        beats(running.worker, 1)  # so that the round which has swept is over
        broker.client.config_resetstat()
        beats(running.worker, 5)
        stats = broker.client.info("commandstats")
    assert len(looks) == 1
    # The holder of the lease also asks whether a sweep is due. The first may be of a round before.
    assert stats["cmdstat_info"]["calls"] <= 2 * stats["cmdstat_zadd"]["calls"] + 2
    assert "cmdstat_evalsha" not in stats


@pytest.mark.parametrize(("rule", "taken"), [("+info", 1), ("-info", 2)])
def test_a_server_that_was_away_and_does_not_say_who_it_is_may_be_another(server, monkeypatch, looks, rule, taken):
    with server.broker() as broker, Proxy(server.socket) as proxy:
        broker.client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all", rule)
        url = proxy.url.replace("redis://", "redis://app:secret@")
        with pointing_at(url), working(monkeypatch) as running:
            proxy.refuse()
            wait_until(lambda: running.worker.trouble.until)
            proxy.accept()
            wait_until(lambda: not running.worker.trouble.until)
            wait_until(lambda: not running.worker.upkeep._check_layout.is_set())
            beats(running.worker, 3)
        assert running.status == OK
    assert len(looks) == taken
