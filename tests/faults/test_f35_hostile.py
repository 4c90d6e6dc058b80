"""F35: values and errors that cannot be looked into, formatted or stored, or that change meanwhile: one execution, one
outcome, and the worker goes on.
"""

from collections import Counter

import pytest

from django_delayq.calls import registry
from django_delayq.calls.compat import TaskResultStatus, task
from django_delayq.models import Run, Schedule
from tests import failpoints
from tests.app import tasks as app_tasks
from tests.faults.harness.oracle import histories_of
from tests.jobs.support import run
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

EXECUTED = Counter()
#: Values that were returned, and that others still have.
SHARED = []


def raising(error):
    """Return a method that raises this."""

    def method(self, *args):
        raise error

    return method


def value(error, name="items"):
    """Return a dict that raises this when it is looked into."""
    return type("Value", (dict,), {name: raising(error)})(a=1)


def unspeakable(base, **methods):
    """Return an error whose methods raise these."""
    return type("Unspeakable", (base,), {name: raising(error) for name, error in methods.items()})("x")


def caused(error, cause):
    """Return an error with this cause."""
    error.__cause__ = cause
    return error


def odd():
    """Return an error that `traceback` cannot format."""
    return SyntaxError("m", ("f", 1, "x", "text"))


class Meta(type):
    """A class that does not tell its name."""

    def __getattribute__(cls, name):
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


NOT_JSON, HALVES = "cannot be stored", "NUL and halves"
#: What is returned, and what becomes of a point: "" failed, else what its result says. A job has failed in any case.
VALUES = {
    "items raises": (lambda: value(RuntimeError("no items")), ""),
    "items exits": (lambda: value(SystemExit(3)), ""),
    "items interrupts": (lambda: value(KeyboardInterrupt()), ""),
    "items refuses": (lambda: value(TypeError("no items")), NOT_JSON),
    "items refuses without a word": (lambda: value(unspeakable(ValueError, __str__=SystemExit())), NOT_JSON),
    "deep in a list": (lambda: [[{"a": value(LookupError("no items"))}]], ""),
    "no class": (lambda: type("Value", (), {"__class__": property(raising(SystemExit()))})(), ""),
    "endless": (lambda: (lambda box: box.append(box) or box)([]), NOT_JSON),
    "a set": (lambda: {1}, NOT_JSON),
}
#: What is raised, and a word that is told of it.
ERRORS = {
    "SyntaxError": (odd, "SyntaxError"),
    "its cause": (lambda: caused(RuntimeError("outer"), odd()), "RuntimeError"),
    "in a group": (lambda: ExceptionGroup("several", [odd()]), "ExceptionGroup"),
    "str exits": (lambda: unspeakable(Exception, __str__=SystemExit(3)), "Unspeakable"),
    "str and repr exit": (lambda: unspeakable(ValueError, __str__=SystemExit(), __repr__=SystemExit()), "Unspeakable"),
    "an exit that cannot be told": (lambda: unspeakable(SystemExit, __str__=KeyboardInterrupt()), "Unspeakable"),
    "no class": (
        lambda: type("Classless", (Exception,), {"__class__": property(raising(SystemExit()))})("x"), "Classless",
    ),
    "no name": (lambda: Meta("Nameless", (Exception,), {})("x"), ""),
    HALVES: (lambda: RuntimeError("a\0b\ud800c"), "RuntimeError: ab?c"),
    "1 MB": (lambda: RuntimeError("x" * 1_000_000), "xxx"),
}  # fmt: skip


@task
def give(what):
    """Return a value, or raise an error, of these tables."""
    EXECUTED[what] += 1
    if what == "shared":
        SHARED.append({"a": [1]})
        return SHARED[-1]
    if what in VALUES:
        return VALUES[what][0]()
    raise ERRORS[what.removesuffix(" raised")][0]()


@pytest.fixture(autouse=True)
def giving(monkeypatch):
    monkeypatch.setitem(registry.get_tasks(), give.module_path, give)
    EXECUTED.clear()
    SHARED.clear()


def due(broker, *names):
    """Make schedules that give these, due now; return their histories."""
    for name in names:
        row = Schedule.objects.create(name=name, task=give.module_path, args=[name], kind="cron", cron=DAILY_CRON)
        make_due(broker, row)
    return histories_of(Schedule.objects.all())


def test_f35_points_have_one_outcome_whatever_a_task_gives_back(broker, report):
    raised = [f"{name} raised" for name in ERRORS]
    histories = due(broker, *VALUES, *raised)
    run_burst(threads=1)
    run_burst(threads=1)
    rows = {row.schedule_name: row for row in Run.objects.filter(origin="due")}
    assert dict.fromkeys([*VALUES, *raised], 1) == EXECUTED
    for name, (_, note) in VALUES.items():
        assert rows[name].status == ("succeeded" if note else "failed"), (name, rows[name].error)
        assert note in str(rows[name].result), name
    for name, (_, word) in ERRORS.items():
        row = rows[f"{name} raised"]
        assert (row.status, bool(row.reason), word in row.error) == ("failed", True, True), (name, row.error[:500])
    report("F35 points", histories, traced=False)


def test_f35_jobs_have_one_outcome_whatever_a_task_gives_back(broker, caplog):
    raised = [f"{name} raised" for name in ERRORS if name != HALVES]  # Django logs them; pytest-xdist cannot carry them
    results = {name: give.enqueue(name) for name in [*VALUES, *raised]}
    neighbour = app_tasks.add.enqueue(1)
    assert run(neighbour).return_value == 2
    run_burst(threads=1)
    assert dict.fromkeys(results, 1) == EXECUTED
    for name, result in results.items():
        result.refresh()
        assert (result.status, len(result.errors)) == (TaskResultStatus.FAILED, 1), name
        word = ERRORS[name.removesuffix(" raised")][1] if name in raised else ""
        assert word in result.errors[0].traceback, (name, result.errors[0].traceback[:500])
    assert not any(stats.members for stats in broker.read_stats(broker.list_shards()))
    told = [record for record in caplog.records if record.name.startswith(("django.tasks", "django_tasks"))]
    assert len([record for record in told if record.exc_info]) == len(results), "error monitors hear of each"


def test_f35_a_value_that_another_thread_changes_is_recorded_as_it_was_returned(broker, monkeypatch, report):
    def change(at):
        for value in SHARED if at == "before_ledger" else ():
            value["a"].append(object())

    histories = due(broker, "shared")
    result = give.enqueue("shared")
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "reach", change)
        run_burst(threads=1)
    row = Run.objects.get(origin="due")
    assert (row.status, row.result) == ("succeeded", {"a": [1]})
    result.refresh()
    assert result.return_value == {"a": [1]}
    report("F35 shared", histories, traced=False)
