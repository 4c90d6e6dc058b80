"""What tests of the mirror and of workers share: schedules, what Redis holds, a server or slots that stand still."""

import json
import socket
import threading
from contextlib import suppress

import redis
from django.db import connections

from django_delayq.exceptions import DelayQError
from django_delayq.models import Schedule
from django_delayq.recurrence import to_ms
from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.support import DAILY_CRON


def schedule(name="s", **values):
    values = {"task": "tests.app.tasks.noop", "kind": "cron", "cron": DAILY_CRON, **values}
    return Schedule.objects.create(name=name, **values)


def view(broker, row, queue=None):
    return broker.read_views([(f"s{row.pk}", queue or row.queue)])[0]


def mirrored(broker, row):
    """Say whether Redis holds exactly what the database wants of a schedule that is not due."""
    row = Schedule.objects.get(pk=row.pk)
    seen = view(broker, row)
    rule_point = row.recurrence.next_after(row.effective_from)
    return (seen.point_ms, seen.generation, seen.leased) == (to_ms(rule_point), row.generation, False)


def absent(broker, row, queue=None):
    return view(broker, row, queue) == type(view(broker, row))(None, None, None, False)


def lose(broker, row):
    """Take an entry away, which only a full sweep finds."""
    broker.remove(broker.get_shard(f"s{row.pk}", row.queue), [(f"s{row.pk}", 10**15, "")])
    assert absent(broker, row)


def set_due(broker, row, part, value):
    place = broker.get_shard(f"s{row.pk}", row.queue)
    name = f"{{{broker.config.prefix}:{place}}}:{part}"
    if part == "due":
        broker.client.zadd(name, {f"s{row.pk}": value})
    else:
        broker.client.hset(name, f"s{row.pk}", value)


def stored(broker):
    """Return the layout in Redis."""
    return json.loads(broker.read_layout())


def at_once(*functions):
    """Call all of them in threads of their own at the same time; return what they returned, after all have."""
    barrier, results, errors = threading.Barrier(len(functions)), [], []

    def run(function):
        try:
            barrier.wait(10)
            results.append(function())
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert errors == []
    return results


def blackhole():
    """A server that accepts connections and never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    return server, f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def visitors(server):
    """Return how many have connected since it was last asked."""
    count = 0
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def attempts(monkeypatch):
    """The two timeouts of each connection that is tried from now on: how long it holds somebody up, on any machine."""
    tried, connect = [], redis.Connection._connect

    def noted(self):
        tried.append((self.socket_connect_timeout, self.socket_timeout))
        return connect(self)

    monkeypatch.setattr(redis.Connection, "_connect", noted)
    return tried


def flush_at(monkeypatch, module, broker, name, call):
    """Flush when a function is called for the n-th time, before it does its work."""
    real, count = getattr(module, name), [0]

    def flushing(*args, **kwargs):
        count[0] += 1
        if count[0] == call:
            broker.purge()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, flushing)
    return count


def idle_worker(**options):
    """A worker whose slots never start: what it submits waits."""
    worker = Worker(WorkerOptions(**{"queues": ("default", "mail"), "threads": 1, "burst": True, **options}))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    return worker


def look(worker):
    """Have a round of the upkeep come to its look, 30 s later."""
    worker.upkeep._due["beat"] = 0.0
    worker.upkeep.run_round()


def until(worker, condition):
    """Play a worker's loop by hand until this holds."""

    def met():
        worker.run_round(0.01)
        return condition()

    wait_until(met)


class Running:
    """A worker in a thread of this process, and what it has ended with."""

    def __init__(self, **options):
        self.worker = Worker(WorkerOptions(**{"queues": ("default",), "threads": 4, **options}))
        self.status = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.status = self.worker.run()
        except DelayQError as error:
            self.status = error
        finally:
            connections.close_all()

    def ended(self):
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self.status

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.worker.stop()
        self.ended()
