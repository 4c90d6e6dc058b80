"""What a guard cuts off, and what it says of it."""

import logging

import pytest
from django.dispatch import Signal

from django_delayq.calls import side_channels
from django_delayq.calls.side_channels import Guard, send
from django_delayq.exceptions import TaskTimeout


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("not even that")


def test_a_cause_is_logged_once_with_what_it_was_and_where_and_without_secrets(caplog):
    for _ in range(3):
        with Guard("A span processor"):
            raise RuntimeError("password=hunter2 refused")
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("A span processor failed and is ignored; the work goes on. Logged once: RuntimeError: ")
    assert f"({__file__}, line " in text and "hunter2" not in text and not record.exc_info
    with Guard("A span processor"):
        raise ValueError("another cause")
    assert len(caplog.records) == 2


@pytest.mark.parametrize("error", [TaskTimeout, KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_passes_unless_it_is_named(error):
    with pytest.raises(error), Guard("A span processor"):
        raise error
    with Guard("A span processor", BaseException):
        raise error


def test_an_error_that_cannot_be_read_is_cut_off_too(caplog):
    with Guard("A span processor"):
        raise Hostile
    assert "Hostile: (its text cannot be read)" in caplog.text


def broken(**kwargs):
    raise RuntimeError("password=hunter2 refused")


class Broken:
    __call__ = staticmethod(broken)


async def also_broken(**kwargs):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("receiver", "name"),
    [(broken, "broken"), (Broken(), "Broken"), (also_broken, "also_broken")],
    ids=["function", "object", "coroutine"],
)
def test_a_receiver_that_raises_is_named_once_and_the_others_are_called(receiver, name, caplog):
    signal, called = Signal(), []

    async def works(**kwargs):
        called.append(kwargs["signal"])

    signal.connect(receiver, weak=False)
    signal.connect(lambda **kwargs: called.append(kwargs["run"]), weak=False)
    signal.connect(works, weak=False)
    for _ in range(2):
        send(signal, "run_finished", sender=None, run=1)
    assert called == [1, signal] * 2
    assert caplog.text.count(f"The receiver {__name__}.{name} of the signal run_finished failed") == 1
    assert len(caplog.records) == 1
    assert "hunter2" not in caplog.text


def fail(*args, **kwargs):
    raise RuntimeError("no")


@pytest.fixture(params=["handler", "filter", "factory"])
def guarded(request):
    """A logger of ours of which something raises."""
    side_channels.guard_loggers()
    logger, handler, factory = (
        logging.getLogger("django_delayq.sync"),
        logging.Handler(),
        logging.getLogRecordFactory(),
    )
    handler.emit = fail
    if request.param == "handler":
        logger.addHandler(handler)
    elif request.param == "filter":
        logger.addFilter(fail)
    else:
        logging.setLogRecordFactory(fail)
    yield logger
    logger.removeHandler(handler)
    logger.removeFilter(fail)
    logging.setLogRecordFactory(factory)
    for name in side_channels.LOGGERS:
        logging.getLogger(name).__dict__.pop("makeRecord", None)
        logging.getLogger(name).__dict__.pop("handle", None)


def test_what_a_log_raises_reaches_none_of_our_callers(guarded, capsys):
    guarded.error("one")
    guarded.error("two", extra={"delayq": {}})
    assert capsys.readouterr().err.count("A log handler failed and is ignored") == 1


def test_each_logger_of_the_package_is_guarded():
    import re
    from pathlib import Path

    folder = Path(side_channels.__file__).parents[1]
    found = {name for path in folder.rglob("*.py") for name in re.findall(r'getLogger\("(.+?)"\)', path.read_text())}
    assert found == set(side_channels.LOGGERS)
