"""What a worker process logs is written by one thread, as it was said, in its order; what cannot be is counted."""

import io
import logging
import os
import threading
from contextvars import ContextVar

import pytest

from django_delayq.exceptions import TaskTimeout
from django_delayq.worker import logs
from django_delayq.worker.logs import LogQueue
from tests.acceptance.support import wait_until

REQUEST = ContextVar("REQUEST", default="-")


@pytest.fixture
def log(request):
    """A logger of a user with a handler of its own, and what that has written."""
    logger = logging.getLogger(getattr(request, "param", "shop"))
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.removeHandler(handler)
    logger.propagate = True


def written(logger):
    """Return the lines that its first handler has written."""
    return logger.handlers[0].stream.getvalue().splitlines()


@pytest.fixture
def gate(log):
    """Hold the log's handler up until the gate is set."""
    opened = threading.Event()
    log.handlers[0].addFilter(lambda record: opened.wait())
    yield opened
    opened.set()


def test_all_is_written_at_the_end_in_its_order_by_the_handlers_and_their_levels(log):
    strict = logging.StreamHandler(io.StringIO())
    strict.setLevel(logging.ERROR)
    log.addHandler(strict)
    with LogQueue() as queue:
        for number in range(1000):
            log.info("line %d", number)
        log.error("enough")
        log.debug("not wanted")
    log.removeHandler(strict)
    assert not queue.stuck
    assert written(log) == [*(f"INFO line {number}" for number in range(1000)), "ERROR enough"]
    assert strict.stream.getvalue() == "enough\n"
    log.info("after")
    assert written(log)[-1] == "INFO after"


def test_a_record_says_what_its_arguments_were_and_where_it_was_logged(log, gate):
    basket = ["apple"]
    kinds = []
    log.handlers[0].addFilter(lambda record: setattr(record, "request", REQUEST.get()) or True)
    log.handlers[0].addFilter(lambda record: kinds.append(type(record.msg)) or True)
    log.handlers[0].setFormatter(logging.Formatter("%(request)s %(threadName)s %(message)s"))
    with LogQueue():
        REQUEST.set("r1")
        log.info("has %s", basket)
        log.info("%(n)d", {"n": 1})
        log.info({"event": "structlog's"})
        basket.append("pear")
        REQUEST.set("r2")
        gate.set()
    name = threading.current_thread().name
    assert written(log) == [f"r1 {name} has ['apple']", f"r1 {name} 1", f"r1 {name} {{'event': \"structlog's\"}}"]
    assert kinds[-1] is dict, "what has no arguments is passed as it is"


def test_what_a_handler_raises_is_shown_and_the_next_record_is_written(log, capsys):
    def fail_first(record):
        if record.msg == "line 1":
            raise RuntimeError("no luck")
        return True

    log.handlers[0].addFilter(fail_first)
    with LogQueue():
        log.info("line %d", 1)
        log.info("line 2")
    assert written(log) == ["INFO line 2"]
    assert "RuntimeError: no luck" in capsys.readouterr().err


@pytest.mark.parametrize("log", ["django_delayq.test", "shop"], indirect=True)
def test_a_log_that_stands_still_is_waited_for_by_nobody_for_long_and_what_is_dropped_is_counted(
    log, gate, monkeypatch, caplog
):
    monkeypatch.setattr(logs, "MOST_WAITING", 10)
    monkeypatch.setattr(logs, "PATIENCE_SECONDS", 0.1)
    with LogQueue():
        log.info("held up")
        for number in range(100):
            log.info("line %d", number)
        gate.set()
        wait_until(lambda: "printed texts were dropped" in caplog.text)
    dropped = int(caplog.messages[-1].split()[0])
    assert dropped >= 90
    assert len(written(log)) == 101 - dropped


def test_whoever_logs_much_waits_while_the_log_moves_on_and_loses_nothing(log, monkeypatch):
    monkeypatch.setattr(logs, "MOST_WAITING", 10)
    for name in ("PATIENCE_SECONDS", "END_SECONDS"):  # the log always moves on, however slow the machine is
        monkeypatch.setattr(logs, name, 300.0)
    with LogQueue():
        for number in range(5000):
            log.info("line %d", number)
    assert len(written(log)) == 5000


def test_the_end_waits_for_a_log_that_stands_still_no_longer_than_a_moment(log, gate, monkeypatch):
    monkeypatch.setattr(logs, "END_SECONDS", 0.01)
    queue = LogQueue()
    with queue:
        log.info("held up")
    assert queue.stuck
    log.info("does not hold up either")
    gate.set()
    wait_until(lambda: not queue.stuck)
    queue.restore()


def test_a_handler_that_is_added_later_is_called_by_whoever_logs_and_stays(log):
    threads, later = [], logging.Handler()
    later.emit = lambda record: threads.append(threading.current_thread())
    with LogQueue():
        log.addHandler(later)
        log.info("x")
    assert log.handlers.count(later) == 1
    log.removeHandler(later)
    assert threads == [threading.current_thread()] and written(log) == ["INFO x"]


def test_without_the_queue_handlers_are_called_at_once_and_what_they_raise_is_cut_off(log, capsys):
    def fail(record):
        if record.msg == "line 1":
            raise LookupError("no luck at once")
        return True

    stream = log.handlers[0].stream
    log.handlers[0].addFilter(fail)
    with LogQueue(direct=True):
        log.info("line 1")
        log.info("line 2")
        assert stream.getvalue() == "INFO line 2\n"
    assert "LookupError: no luck at once" in capsys.readouterr().err


def test_a_timeout_that_arrives_in_a_handler_is_the_tasks(log):
    def time_out(record):
        raise TaskTimeout

    log.handlers[0].addFilter(time_out)
    with LogQueue(direct=True), pytest.raises(TaskTimeout):
        log.info("x")


def test_a_child_that_is_forked_logs_as_any_program(log):
    stream = log.handlers[0].stream
    with LogQueue():
        child = os.fork()
        if not child:
            log.info("in the child")
            os._exit(0 if stream.getvalue() == "INFO in the child\n" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_handler_that_logs_itself_is_written_too(log):
    def tell(record):
        if record.msg == "first":
            log.info("second")
        return True

    log.handlers[0].addFilter(tell)
    with LogQueue():
        log.info("first")
    assert written(log) == ["INFO second", "INFO first"]
