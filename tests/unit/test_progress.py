"""How far a command is: a bar on a terminal, JSON for a program, nothing else anywhere."""

import io
import json
import os
from contextlib import contextmanager

import pytest
from django.core.management.base import OutputWrapper

from django_delayq.management import progress
from django_delayq.management.progress import Progress


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    for name in ("FIRST_SECONDS", "TERMINAL_SECONDS", "JSON_SECONDS"):
        monkeypatch.setattr(progress, name, 0.0)


@contextmanager
def terminal():
    """Lend a terminal to write to, and what reads all that was written: it is handed over in parts, up to a mark."""
    ours, theirs = os.openpty()

    def read():
        out.write("END", ending="")
        out.flush()
        shown = ""
        while not shown.endswith("END"):
            shown += os.read(ours, 1000).decode()
        return shown.removesuffix("END")

    with os.fdopen(theirs, "w") as stream:
        out = OutputWrapper(stream)
        yield out, read
    os.close(ours)


def test_on_a_terminal_there_is_a_bar_and_nothing_of_it_is_left() -> None:
    with terminal() as (out, read):
        with Progress(out, "schedules", 200) as bar:
            assert bar.at(50)
        shown = read()
    assert "[#######.......................]  25%  50 schedules" in shown
    _, line, wiped, rest = shown.split("\r")
    assert (wiped, rest) == (" " * len(line), "")


def test_what_takes_less_than_a_second_shows_nothing(monkeypatch) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 60.0)
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    with Progress(OutputWrapper(out), "schedules", 200) as bar:
        bar.at(50)
    assert out.getvalue() == ""


def test_where_stdout_is_no_terminal_there_is_nothing() -> None:
    out = io.StringIO()
    with Progress(OutputWrapper(out), "schedules", 200) as bar:
        bar.at(50)
    assert out.getvalue() == ""


@pytest.mark.parametrize("total", [0, 200])
def test_a_program_gets_an_object_in_a_line(total) -> None:
    out = io.StringIO()
    with Progress(OutputWrapper(out), "schedules", total, as_json=True) as bar:
        bar.at(50)
    told = json.loads(out.getvalue())
    assert (told["schedules"], told["of"], told["seconds_left"] is None) == (50, total or None, not total)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1:01 min")])
def test_time_left_is_short_to_read(seconds, text) -> None:
    assert progress._clock(seconds) == text


def test_a_line_for_a_person_takes_the_place_of_the_bar() -> None:
    with terminal() as (out, read):
        with Progress(out, "entries") as bar:
            bar.at(50, 200)
            bar.say("waiting")
        shown = read()
    assert " 25%  50 entries" in shown
    _, line, wiped, rest = shown.split("\r", 3)
    assert (wiped, rest.strip()) == (" " * len(line), "waiting")


def test_a_program_is_told_no_line_for_a_person() -> None:
    out = io.StringIO()
    with Progress(OutputWrapper(out), "entries", as_json=True) as bar:
        bar.say("waiting")
    assert out.getvalue() == ""
