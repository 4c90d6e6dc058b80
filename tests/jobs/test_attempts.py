"""The attempts of a job are kept: its retries, what its workers did not end, and those of before it was revived."""

import json
from datetime import timedelta

import pytest

from django_delayq.backend import operating
from django_delayq.backend.listing import find_job
from django_delayq.backend.operating import Outcome
from django_delayq.compat import TaskResultStatus, task_backends
from django_delayq.exceptions import UnreadableJob
from django_delayq.history import MOST_ATTEMPTS, MOST_TRACES, NOT_ENDED
from django_delayq.jobs import (
    State,
    attempts_of,
    decode,
    decode_state,
    encode,
    encode_state,
    note_failed,
    note_lost,
    revived,
)
from django_delayq.jobs.record import Span
from django_delayq.models import Job
from tests.app import tasks
from tests.jobs.support import Stored, run_burst
from tests.jobs.test_worker import died

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
MEMBER = f"j{'A' * 22}"
ALIASES = pytest.mark.parametrize("alias", ["default", "durable", "stored"])


def state_of(attempts=1, *, status="FAILED", first=1, **values):
    """A state after so many attempts that failed, the first from 10·first to 10·first + 5."""
    state = State()
    for number in range(first, first + attempts):
        state.attempted = 10 * number
        state.workers.append(f"w-{number}")
        state.errors.append(("builtins.RuntimeError", f"Traceback\nRuntimeError: no luck {number}\n"))
        if number < first + attempts - 1 or not status:
            note_failed(state, 10 * number + 5)
    state.started, state.status = 10 * first, status
    state.finished = 10 * (first + attempts - 1) + 5 if status else None
    for name, value in values.items():
        setattr(state, name, value)
    return state


def briefly(attempts):
    return [(each.number, each.started, each.finished, each.worker, each.title) for each in attempts]


def failed(number, at=None):
    at = at or number
    return (number, 10 * at, 10 * at + 5, f"w-{at}", f"RuntimeError: no luck {at}")


def read(state):
    return decode_state(MEMBER, encode_state(state))


# -- the line of a state


def test_what_has_no_past_says_nothing_of_it():
    for state in (State(), state_of(), State("SUCCESSFUL", 1, 1, 2, [], ["w"], {"value": {"times": []}})):
        assert "past" not in json.loads(encode_state(state))
        assert (tuple(read(state).times), tuple(read(state).earlier)) == ((), ())


@pytest.mark.parametrize("attempts", [1, 2, 5])
@pytest.mark.parametrize("status", ["", "FAILED"])
def test_each_attempt_has_its_times_its_worker_and_its_error(attempts, status):
    again = read(state_of(attempts, status=status))
    assert briefly(attempts_of(again)) == [failed(number) for number in range(1, attempts + 1)]
    assert all("no luck" in each.trace for each in attempts_of(again))


def test_an_execution_that_did_not_end_stands_where_it_was():
    state = state_of(1, status="")
    note_lost(state, 2, "dead", 17)
    state.attempted, state.status, state.finished = 20, "SUCCESSFUL", 25
    state.workers.append("w-2")
    assert briefly(attempts_of(read(state))) == [
        failed(1), (2, None, None, "", NOT_ENDED), (3, 17, None, "dead", NOT_ENDED), (4, 20, 25, "w-2", ""),
    ]  # fmt: skip
    note_lost(state, 0, "nobody", 1)
    assert len(attempts_of(state)) == 4


def test_a_value_that_was_too_large_is_no_error_of_an_attempt():
    state = state_of(2, status="SUCCESSFUL")
    state.errors[-1] = ("django_delayq.exceptions.ResultTooLarge", "large")
    assert briefly(attempts_of(read(state))) == [failed(1), (2, 20, 25, "w-2", "")]


def test_what_ended_it_between_two_attempts_is_no_attempt():
    state = state_of(1, status="")
    state.errors.append(("django_delayq.exceptions.JobCancelled", "Cancelled between two attempts."))
    state.status, state.finished = "FAILED", 99
    assert briefly(attempts_of(read(state))) == [failed(1)]


def test_a_revived_state_has_its_past_and_counts_anew():
    state = read(revived(read(state_of(2))))
    assert (state.status, state.workers, state.errors, state.started, state.finished) == ("", [], [], None, None)
    assert briefly(attempts_of(state)) == [failed(1), failed(2)]
    again = state_of(2, first=3)
    again.earlier = state.earlier
    assert briefly(attempts_of(read(revived(read(again))))) == [failed(number) for number in range(1, 5)]


def test_a_state_without_attempts_has_no_past_when_it_is_revived():
    assert revived(State("FAILED", errors=[("x.JobLost", "lost")])) is None


def test_a_job_that_is_revived_again_and_again_does_not_grow_for_ever():
    state = State()
    for _ in range(2 * MOST_ATTEMPTS):
        state.workers, state.status = ["w"], "FAILED"
        state.errors = [("builtins.RuntimeError", "x" * 20_000)]
        state = read(revived(state))
    found = attempts_of(state)
    assert (len(found), sum(bool(each.trace) for each in found)) == (MOST_ATTEMPTS, MOST_TRACES)
    assert len(encode_state(state)) < 300_000


@pytest.mark.parametrize(
    ("times", "read_as"),
    [
        ("5", []), ("null", []), ("[5]", []), ("[[1]]", [(1, None, None)]), ('[[1,"soon",{}]]', [(1, None, None)]),
        ('[[1,2,"w",4]]', [(1, 2, "w")]),
    ],
)  # fmt: skip
def test_a_past_that_cannot_be_read_keeps_no_job_from_being_executed(times, read_as):
    line = f'{{"past":{{"times":{times}}},"status":"","workers":["w"],"value":7}}'
    state = decode_state(MEMBER, line)
    assert ([*state.times], [*state.earlier], state.workers, state.value) == (read_as, [], ["w"], 7)
    assert attempts_of(state)[-1].worker == "w"


def test_a_past_that_is_no_json_is_a_text_that_cannot_be_read():
    with pytest.raises(UnreadableJob):
        decode_state(MEMBER, '{"past":{"times":')


def test_a_past_is_signed_with_the_text():
    line = Stored(tasks.add.enqueue(1)).payload.split("\n")[1]
    text = encode("default", MEMBER, line, state_of(2))
    assert attempts_of(decode("default", MEMBER, text)[2])[0].started == 10


# -- real attempts


def seen(result):
    """Return what stands of a job's attempts."""
    return attempts_of(find_job(Stored(result).jobs.broker, result.id).record)


def whole(attempts):
    """Say whether each attempt has its worker and its times, and they follow each other."""
    times = [time for each in attempts for time in (each.started, each.finished)]
    return None not in times and times == sorted(times) and all(each.worker for each in attempts)


def titles(attempts):
    return [each.title for each in attempts]


@ALIASES
def test_a_job_that_succeeds_at_once_has_a_line_as_before(alias):
    result = tasks.add.using(backend=alias).enqueue(1)
    run_burst()
    line = Job.objects.get().state if alias != "default" else Stored(result).result.split("\n")[2]
    assert line.startswith('{"status":"SUCCESSFUL"')


@ALIASES
def test_retries_are_kept_and_the_result_is_as_it_was(alias, tmp_path):
    task = tasks.flaky.using(backend=alias, max_attempts=3, backoff=timedelta(0))
    result = task.enqueue(str(tmp_path / "f"), 2)
    run_burst()
    result = task_backends[alias].get_result(result.id)
    assert (result.status, result.attempts, len(result.errors)) == (SUCCESSFUL, 3, 2)
    found = seen(result)
    assert titles(found) == ["RuntimeError: attempt 1 fails", "RuntimeError: attempt 2 fails", ""]
    assert whole(found) and all("in flaky" in each.trace for each in found[:2])


@ALIASES
def test_a_dead_job_that_is_revived_keeps_all_attempts_of_before(alias, tmp_path):
    task = tasks.flaky.using(backend=alias, max_attempts=2, backoff=timedelta(0))
    result = task.enqueue(str(tmp_path / "f"), 5)
    broker = Stored(result).jobs.broker
    expected = [f"RuntimeError: attempt {number} fails" for number in range(1, 6)]
    for count in (2, 4):
        run_burst()
        assert titles(seen(result)) == expected[:count]
        assert operating.revive(broker, result.id) == Outcome.DONE
        again = task_backends[alias].get_result(result.id)
        assert (again.status, again.attempts, again.errors) == (TaskResultStatus.READY, 0, [])
        assert titles(seen(result)) == expected[:count], "while it waits"
    run_burst()
    again = task_backends[alias].get_result(result.id)
    assert (again.status, again.attempts, len(again.errors)) == (SUCCESSFUL, 2, 1)
    found = seen(result)
    assert titles(found) == [*expected, ""]
    assert whole(found) and all("in flaky" in each.trace for each in found[:5])


def test_who_took_a_job_over_knows_whose_execution_did_not_end():
    run_burst()
    result = tasks.add.enqueue(1)
    died(result, times=2)
    run_burst()
    unknown, known, last = seen(result)
    assert [each.title for each in (unknown, known, last)] == [NOT_ENDED, NOT_ENDED, ""]
    assert (unknown.worker, known.worker, known.finished) == ("", "thief", None)
    assert known.started <= last.started
    result.refresh()
    assert (result.attempts, result.errors) == (1, [])


def test_what_killed_its_workers_is_dead_with_each_execution(settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RECLAIMS": 2}
    run_burst()
    result = tasks.add.enqueue(1)
    died(result, times=3)
    run_burst()
    assert titles(seen(result)) == [NOT_ENDED] * 3
    assert operating.revive(Stored(result).jobs.broker, result.id) == Outcome.DONE
    assert titles(seen(result)) == [NOT_ENDED] * 3


def test_who_took_a_durable_job_over_knows_whose_execution_did_not_end(broker):
    result = tasks.add.using(backend="durable").enqueue(1)
    Job.objects.update(status="RUNNING", fence=f"{1024 * 1_700_000_000_000}.x w-dead")
    run_burst()
    lost, last = seen(result)
    assert (lost.worker, lost.started, lost.finished, lost.title) == ("w-dead", 1_700_000_000_000, None, NOT_ENDED)
    assert (last.title, last.worker != "") == ("", True)


def test_a_durable_job_whose_state_cannot_be_read_is_revived_without_its_past(broker):
    result = tasks.fail.using(backend="durable").enqueue()
    run_burst()
    Job.objects.update(state='{"past":{"times":5},"status":"FAILED","later":1}')
    assert operating.revive(broker, result.id) == Outcome.DONE
    assert Job.objects.get().state == ""


def test_who_cancels_a_job_between_two_attempts_without_its_backend_keeps_them(settings):
    result = tasks.fail.using(max_attempts=2, backoff=3600).enqueue()
    run_burst()
    stored = Stored(result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operating, "_by_backend", lambda call, wanted, told: None)
        assert operating.cancel(stored.jobs.broker, result.id) == Outcome.DONE
    result.refresh()
    assert [error.exception_class_path.rpartition(".")[2] for error in result.errors] == [
        "RuntimeError",
        "JobCancelled",
    ]
    assert titles(seen(result)) == ["RuntimeError: no luck"]


def test_a_span_without_a_worker_has_ended():
    assert [Span(1, None).lost, Span(1, 2).lost, Span(None, None, "").lost] == [False, False, True]
