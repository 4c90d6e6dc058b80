"""What a task says is noted for it alone, and reaches the log and the streams as it would without."""

import contextvars
import io
import logging
import sys
import threading
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from django_delayq.calls import capture
from django_delayq.calls.capture import MARGIN, CapturedOutput, capture_output, current
from django_delayq.worker.logs import LogQueue
from tests.acceptance.support import wait_until


@pytest.fixture(autouse=True)
def logging_is_as_it_was():
    before = logging.Logger.callHandlers, logging.root.handlers[:]
    yield
    assert (logging.Logger.callHandlers, logging.root.handlers) == before


@contextmanager
def listens(most=1000, **options):
    """Listen; yield what is printed meanwhile. pytest has a stream of its own for each phase of a test."""
    stream = io.StringIO()
    with redirect_stdout(stream), capture_output(most, **options):
        yield stream


def said(call):
    """Return what a call says in a context of its own."""
    output = CapturedOutput(capture.most)

    def within():
        current.set(output)
        call()

    contextvars.copy_context().run(within)
    return output.end()


def test_what_is_printed_is_noted_and_printed():
    with listens() as stdout:
        assert said(lambda: print("a", "b")) == "a b\n"
        print("of nobody")
        sys.stdout.writelines(["c", "d"])
    assert stdout.getvalue() == "a b\nof nobody\ncd"


@pytest.mark.parametrize("direct", [False, True])
def test_what_is_logged_is_noted_once_whatever_its_handlers_do(direct):
    logger = logging.getLogger("shop.capture")
    handler = logging.Handler()
    handler.emit = lambda record: print(handler.format(record))
    logger.addHandler(handler)
    try:
        with LogQueue(direct=direct) as log, listens(put=log.put) as stdout:
            text = said(lambda: logger.error("No %s", "luck"))
            assert said(lambda: logger.debug("below the level")) == ""
            assert "ZeroDivisionError" in said(lambda: divide(logger))
            wait_until(lambda: "ZeroDivisionError: " in stdout.getvalue(), 10, "the log")
        assert text.count("\n") == 1 and text.endswith(" ERROR   shop.capture: No luck\n"), text
        assert stdout.getvalue().startswith("No luck\n")
    finally:
        logger.removeHandler(handler)


def test_what_a_logger_does_not_propagate_is_not_heard(monkeypatch):
    logger = logging.getLogger("shop.capture")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    with listens():
        assert said(lambda: logger.error("No luck")) == ""


@pytest.mark.parametrize("handled", [False, True])
def test_what_no_handler_of_the_project_takes_is_printed_to_stderr_as_ever(handled, monkeypatch):
    logger, stderr = logging.getLogger("shop.capture"), io.StringIO()
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()] * handled)
    with redirect_stderr(stderr), listens():
        text = said(lambda: logger.warning("No luck"))
        said(lambda: logger.info("below the level"))
        monkeypatch.setattr(logger, "handlers", [])  # before the fixture looks
    assert text.count("No luck") == 1
    assert stderr.getvalue() == "" if handled else stderr.getvalue() == "No luck\n"
    monkeypatch.undo()


def divide(logger):
    try:
        print(1 / 0)
    except ZeroDivisionError:
        logger.exception("no")


def test_a_record_that_cannot_be_formatted_is_its_handlers_to_tell(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with listens():
        assert said(lambda: logging.getLogger("shop.capture").error("%d", "no number")) == ""


def test_executions_side_by_side_hear_only_themselves():
    texts, go = {}, threading.Barrier(4)

    def run(name):
        def talk():
            go.wait()
            for number in range(200):
                print(name, number)

        texts[name] = said(talk)

    with listens(100_000):
        threads = [threading.Thread(target=run, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == {name: "".join(f"{name} {number}\n" for number in range(200)) for name in "abcd"}


def test_nobody_listens_where_nothing_is_to_be_kept():
    with listens(0):
        assert not capture.most


@pytest.mark.parametrize("size", [1, 7, 100, 5000, 100_000])
def test_the_end_is_kept_whole_in_whatever_pieces_it_comes(size):
    output = CapturedOutput(1000 + MARGIN)
    everything = "".join(f"line {number}\n" for number in range(20_000))
    for begin in range(0, len(everything), size):
        output.add(everything[begin : begin + size])
    text = output.end()
    assert everything.endswith(text) and 1000 <= len(text) <= 1000 + MARGIN
    assert text.startswith("line ")
    output.add("too late")
    assert "too late" not in output.end()


def test_what_is_held_meanwhile_is_bounded():
    output = CapturedOutput(1000)
    for _ in range(10_000):
        output.add("x" * 999)
    assert sum(map(len, output._texts)) < 2 * 1000


def test_of_a_long_line_the_beginning_that_was_cut_is_left_out():
    output = CapturedOutput(100 + MARGIN)
    output.add("x" * 10_000)
    assert output.end() == "x" * 100
