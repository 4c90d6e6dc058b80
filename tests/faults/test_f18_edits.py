"""F18: a schedule is edited, disabled, enabled, deleted, made anew or moved at each phase of a run.

The edit wins: whatever comes due afterwards is of the new definition, nothing new starts of what was switched off or
deleted, no point is left out and none has two outcomes.
"""

from datetime import timedelta

import pytest

from django_delayq.models import Run, Schedule
from django_delayq.recurrence import from_ms
from django_delayq.signals import run_started
from tests import failpoints
from tests.acceptance.support import wait_until
from tests.faults.harness.oracle import History, check
from tests.faults.harness.verdict import row_of
from tests.integration.mirroring import absent, mirrored
from tests.support import DAILY_CRON, OTHER_DAILY_CRON, make_due, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

PHASES = [
    "before_claim", "after_claim", "after_judge", "mid-task", "before_ledger", "after_ledger", "after_settle",
    "before its retry",
]  # fmt: skip
#: Phases in which the point has been judged: it runs, or has run, whatever is edited.
STARTED = PHASES[2:]


def edit(row, history):
    row.cron = OTHER_DAILY_CRON
    row.save()


def edit_arguments(row, history):
    row.args = [*row.args, 0]
    row.save()


def disable(row, history):
    row.pause("holidays")


def disable_and_enable(row, history):
    row.pause("a mistake")
    history.note(row)
    row.resume()


def enable(row, history):
    row.resume()


def delete(row, history):
    row.delete()


def make_anew(row, history):
    row.delete()
    Schedule.objects.create(name=row.name, task=row.task, args=row.args, kind="cron", cron=row.cron)


def move(row, history):
    row.queue = "mail"
    row.save()


EDITS = [edit, edit_arguments, disable, disable_and_enable, enable, delete, make_anew, move]


class Case:
    """One schedule with a point due, and what is done to it once the phase is reached."""

    def __init__(self, broker, change, phase, trace):
        values = {"task": "tests.faults.tasks.trace", "args": [str(trace.path)], "kind": "cron", "cron": DAILY_CRON}
        if phase == "before its retry":
            values |= {"task": "tests.faults.tasks.fail_first", "max_attempts": 2, "backoff": timedelta(seconds=0.2)}
        self.broker, self.change = broker, change
        self.row = Schedule.objects.create(name=f"{change.__name__} {phase}", **values)
        self.pk = self.row.pk
        self.point = make_due(broker, self.row)
        self.row.refresh_from_db()
        self.history = History.of(self.row)
        if change is enable:
            self.row.pause()
            self.history.note(self.row)
        self.changed = False

    def strike(self):
        if not self.changed:
            self.changed = True
            self.change(self.row, self.history)
            self.history.deleted = self.change in (delete, make_anew)
            if not self.history.deleted:
                self.history.note(self.row)

    def run(self, phase, patch):
        if phase == "mid-task":
            run_started.connect(self._started)
            run_burst()
            run_started.disconnect(self._started)
        elif phase == "before its retry":
            run_burst()
            assert self.runs() == ["retrying"]
            self.strike()
            due_ms = self.broker.read_now_ms() + 250
            wait_until(lambda: self.broker.read_now_ms() > due_ms, 5, "the retry to come due")
        else:
            with patch.context() as patched:
                patched.setattr(failpoints, "reach", lambda name: self.strike() if name == phase else None)
                run_burst()
        assert self.changed, "the phase was never reached"
        run_burst()

    def _started(self, run, **kwargs):
        self.strike()

    def runs(self):
        rows = Run.objects.filter(schedule_id=self.pk, due_at=self.point)
        return list(rows.values_list("status", flat=True))


def outcomes(change, phase):
    """Return what may be in the ledger of the point that was due."""
    if change is disable:
        return ["failed"] if phase == "before its retry" else ["succeeded"] if phase in STARTED else ["skipped"]
    if change in (delete, make_anew):
        if phase == "before its retry":
            return ["lost"]
        return ["succeeded"] if phase in ("after_ledger", "after_settle") else []
    if change is enable and phase in STARTED:
        return ["skipped"]  # it was judged while the schedule was disabled
    return ["succeeded"]


def executions(change, phase):
    """Return how often a task was called for that point."""
    if phase == "before its retry":
        return 1 if change in (disable, delete, make_anew) else 2
    if phase in STARTED:
        return 0 if change is enable else 1
    return 0 if change in (disable, delete, make_anew) else 1


@pytest.mark.parametrize("phase", PHASES)
def test_f18_whatever_is_edited_at_a_phase_of_a_run_the_edit_wins(broker, monkeypatch, trace, note_row, phase):
    cases = []
    for change in EDITS:
        if change is enable and phase in ("mid-task", "before its retry"):  # a disabled schedule reaches neither
            continue
        cases.append(Case(broker, change, phase, trace))
        cases[-1].run(phase, monkeypatch)
        follows(broker, cases[-1], f"{change.__name__} at {phase}")  # before the next case sweeps
    verdict = check([case.history for case in cases], from_ms(broker.read_now_ms()), trace)
    note_row(row_of(f"F18 {phase}", verdict))
    assert verdict.clean, verdict.complaints()
    for case in cases:
        what = f"{case.change.__name__} at {phase}"
        assert case.runs() == outcomes(case.change, phase), what
        assert sum(item.schedule == case.pk for item in trace.executions()) == executions(case.change, phase), what


def follows(broker, case, what):
    """Redis holds what comes next of the new definition, and nothing of the old one."""
    case.row.pk = case.pk
    if case.change in (disable, delete, make_anew):
        assert absent(broker, case.row, "default"), what
    elif case.change is move:
        assert absent(broker, case.row, "default"), what
        assert broker.read_views([(f"s{case.pk}", "mail")])[0].point_ms is not None, what
    if case.change is make_anew:
        assert mirrored(broker, Schedule.objects.get(name=case.row.name)), what
    elif case.change in (edit, disable_and_enable, enable):
        assert mirrored(broker, case.row), what
