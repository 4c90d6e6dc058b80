"""`OPTIONS` of an alias: what is refused, with which words; and what `check()` finds."""

import re
from datetime import timedelta

import pytest
from django.core.checks import Error

from django_delayq.backend import DelayQBackend
from django_delayq.calls import Options, Retries
from django_delayq.calls.compat import InvalidTaskBackend, task_backends
from tests.jobs.support import BACKEND, tasks_setting

WRONG = [
    (
        {"retries": 3},
        "has an unknown option 'retries'. Known: backoff, failure_ttl, max_attempts, result_ttl, tasks, timeout.",
    ),
    ({"max_attempt": 3}, "unknown option 'max_attempt'. Did you mean 'max_attempts'?"),
    ({5: 3}, "unknown option 5."),
    ({"max_attempts": 0}, "'max_attempts' must be a whole number from 1 to 1,000, not 0."),
    ({"max_attempts": True}, "not True."),
    ({"backoff": -1}, "'backoff' must be a number of seconds or a timedelta, up to a year, not -1."),
    ({"backoff": float("nan")}, "not nan."),
    ({"timeout": "10"}, "not '10'."),
    ({"result_ttl": timedelta(days=400)}, "not datetime.timedelta(days=400)."),
    ({"failure_ttl": timedelta(seconds=-1)}, "'failure_ttl' must be a number of seconds"),
    ({"tasks": ["shop.tasks.send"]}, "TASKS['default']['OPTIONS']['tasks'] must be a dict, not list."),
    ({"tasks": {"a.b": 5}}, "['tasks']['a.b'] must be a dict, not int."),
    ({"tasks": {"a.b": {"max_attempts": 0}}}, "['tasks']['a.b']: 'max_attempts' must be a whole number"),
    ({"tasks": {"a.b": {"result_ttl": 5}}}, "['tasks']['a.b'] has an unknown option 'result_ttl'."),
    (["max_attempts"], "TASKS['default']['OPTIONS'] must be a dict, not list."),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(row[0])[:40] for row in WRONG])
def test_what_is_wrong_is_refused_with_what_to_write(settings, options, message):
    settings.TASKS = tasks_setting(default=options)
    with pytest.raises(InvalidTaskBackend, match=re.escape(message)):
        task_backends["default"]


def test_the_alias_is_named(settings):
    settings.TASKS = tasks_setting(other={"x": 1})
    with pytest.raises(InvalidTaskBackend, match=re.escape("TASKS['other']['OPTIONS']")):
        task_backends["other"]


def test_what_is_right_is_taken():
    options = {
        "result_ttl": timedelta(hours=2),
        "failure_ttl": 5,
        "max_attempts": 1000,
        "backoff": 0.5,
        "timeout": timedelta(milliseconds=1500),
        "tasks": {"a.b": {"max_attempts": 2, "backoff": timedelta(seconds=1)}, "c.d": {}},
    }
    backend = DelayQBackend("x", {"OPTIONS": options})
    assert backend.settings == Options(
        result_ttl=7200.0,
        failure_ttl=5.0,
        max_attempts=1000,
        backoff=0.5,
        timeout=1.5,
        tasks={"a.b": Retries(2, 1.0, None), "c.d": Retries()},
    )
    assert DelayQBackend("x", {}).settings == Options()


def test_a_check_finds_queues_that_no_worker_serves(settings):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "nobody"]}}
    [found] = task_backends["default"].check()
    assert (found.id, type(found)) == ("delayq.E005", Error)
    assert "'nobody', which no worker serves" in found.msg
    assert "DELAYQ['QUEUES'] (default, mail)" in found.hint


def test_a_check_of_what_is_right_finds_nothing():
    assert list(task_backends["default"].check()) == []
