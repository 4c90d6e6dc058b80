"""Integrity: whoever may write to Redis chooses neither tasks nor arguments nor what a result makes us import."""

import json
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import pytest
from django.db import InterfaceError
from django.test import override_settings

from django_delayq.backend import operating
from django_delayq.backend.listing import Flaw, JobState, find_job
from django_delayq.broker import keys
from django_delayq.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from django_delayq.exceptions import ForgedJob
from django_delayq.fields import utcnow
from django_delayq.jobs import State, decode, encode, encode_state
from django_delayq.jobs.signing import sign, verify
from django_delayq.kinds import unverified
from django_delayq.timing import to_ms
from tests.acceptance.support import wait_until
from tests.app import tasks as app_tasks
from tests.faults.live import live_worker
from tests.jobs import tasks
from tests.jobs.support import SUCCESSFUL, Stored, run, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def forge(payload, **changes):
    """Return a payload with its signature, and with other values in its call."""
    signature, line, *rest = payload.split("\n")
    return "\n".join([signature, json.dumps({**json.loads(line), **changes}), *rest])


def waits(result):
    """Say whether a job waits for a time."""
    return find_job(Stored(result).jobs.broker, result.id).state == JobState.WAITING


CHANGED = {
    "another argument": lambda payload: forge(payload, args=[666]),
    "another task": lambda payload: forge(payload, task="tests.app.tasks.noop"),
    "a function that is no task": lambda payload: forge(payload, task="os.system", args=["true"]),
    "more attempts": lambda payload: forge(payload, max_attempts=5),
    "no signature": lambda payload: payload.partition("\n")[2],
    "an empty signature": lambda payload: "\n" + payload.partition("\n")[2],
    "half a signature": lambda payload: payload[20:],
    "a signature of garbage": lambda payload: "\u00e9" * 43 + "\n" + payload.partition("\n")[2],
    "a state that was not signed": lambda payload: payload + '\n{"status":"SUCCESSFUL","value":"mine"}',
    "nothing": lambda payload: "",
    "garbage": lambda payload: b"\xff\x00\n\xff",
    "another layout": lambda payload: payload.replace("\n", "", 1),
}


@pytest.mark.parametrize("how", CHANGED)
def test_a_forged_job_is_handed_back_once_then_dead_and_its_neighbours_run(how, caplog):
    victim = app_tasks.add.enqueue(1)
    app_tasks.add.enqueue(2)
    stored = Stored(victim)
    stored.payload = forged = CHANGED[how](stored.payload)
    with pytest.raises(TaskResultDoesNotExist):
        app_tasks.add.get_result(victim.id)
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].cancel(victim.id)
    before = stored.jobs.broker.now_ms()
    with live_worker():
        wait_until(lambda: app_tasks.CALLS, 20, "its neighbour")
        wait_until(lambda: "is not signed with this project's SECRET_KEY" in caplog.text, 20, "what is said")
        if how != "nothing":
            wait_until(lambda: waits(victim), 20, "it to be handed back")
            assert stored.wakes_ms >= before + 20_000, "for whoever may know its key"
            assert operating.run_now(stored.jobs.broker, victim.id) == operating.Outcome.DONE
            wait_until(lambda: stored.dead, 20, "its end")
    assert app_tasks.CALLS == [(2, 1)]
    if how == "nothing":
        assert stored.gone()
        return
    text = stored.client.hget(stored.names["payload"], stored.member)
    assert text == (forged if isinstance(forged, bytes) else forged.encode()), "as it was"
    assert operating.revive(stored.jobs.broker, victim.id) == operating.Outcome.UNREADABLE
    assert operating.delete(stored.jobs.broker, victim.id) == operating.Outcome.DONE
    assert stored.gone()


def test_a_payload_does_not_count_under_another_jobs_id():
    one, two = app_tasks.add.enqueue(1), app_tasks.add.enqueue(2)
    Stored(one).payload = Stored(two).payload
    run_burst()
    assert app_tasks.CALLS == [(2, 1)]


def test_a_job_that_somebody_adds_is_not_run():
    model = app_tasks.add.enqueue(1)
    stored = Stored(model)
    names, member = stored.names, f"j{'x' * 22}"
    stored.client.hset(names["payload"], member, stored.payload)
    stored.client.zadd(names["ready"], {member: 1})
    before = stored.jobs.broker.now_ms()
    run_burst()
    assert app_tasks.CALLS == [(1, 1)]
    assert stored.client.zscore(names["jobs"], member) >= before + 20_000


def test_a_forged_result_is_none_and_imports_nothing():
    result = run(app_tasks.fail.enqueue())
    good = run(tasks.echo.enqueue())
    bad = Stored(good)
    state = {"status": "FAILED", "errors": [["subprocess.Popen", "boo"]]}
    text = bad.result.rpartition("\n")[0] + "\n" + json.dumps(state)
    bad.result = text
    with pytest.raises(TaskResultDoesNotExist):
        good.refresh()
    dead = Stored(result)
    dead.payload = dead.payload.replace("builtins.RuntimeError", "subprocess.Popen")
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_result_does_not_count_under_another_jobs_id():
    one, two = run(tasks.echo.enqueue(1)), tasks.echo.enqueue(2)
    Stored(two).client.hdel(Stored(two).names["payload"], Stored(two).member)
    Stored(two).result = Stored(one).result
    with pytest.raises(TaskResultDoesNotExist):
        two.refresh()


# -- keys


def test_what_the_former_key_signed_counts_while_it_is_a_fallback(settings):
    ended, dead = run(tasks.aecho.enqueue(2)), run(app_tasks.fail.enqueue())
    waiting = tasks.echo.enqueue(1)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "a new one", ["an older one", "only for tests"]
    ended.refresh()
    dead.refresh()
    assert (ended.status, dead.status) == (SUCCESSFUL, TaskResultStatus.FAILED)
    assert run(waiting).return_value == [[1], {}]
    settings.SECRET_KEY_FALLBACKS = []
    waiting.refresh()  # signed anew at its end
    assert waiting.status == SUCCESSFUL
    with pytest.raises(TaskResultDoesNotExist):
        ended.refresh()


def test_a_key_may_be_bytes(settings):
    settings.SECRET_KEY = b"\xff bytes"
    assert run(tasks.echo.enqueue()).status == SUCCESSFUL


def test_what_another_key_signed_waits_for_a_worker_that_has_it(settings):
    result = app_tasks.add.enqueue(1)
    with override_settings(SECRET_KEY="the wrong one"):
        run_burst()
    assert app_tasks.CALLS == []
    Stored(result).make_due()
    assert run(result).status == SUCCESSFUL
    assert app_tasks.CALLS == [(1, 1)]


@pytest.mark.parametrize("remembered", [0, 1])
def test_no_more_than_so_many_are_handed_back(monkeypatch, remembered):
    monkeypatch.setattr(unverified, "REMEMBERED", remembered)
    made = [app_tasks.add.enqueue(n) for n in range(3)]
    for result in made:
        Stored(result).payload = "damaged"
    run_burst()
    assert sum(Stored(result).dead for result in made) == 3 - remembered


def test_a_dead_one_gives_its_unique_key_up(monkeypatch):
    monkeypatch.setattr(unverified, "REMEMBERED", 0)
    task = app_tasks.add.using(unique_key="k")
    first = task.enqueue(1)
    Stored(first).payload = "damaged"
    assert task.enqueue(2).id == first.id
    run_burst()
    second = task.enqueue(3)
    assert second.id != first.id
    assert run(second).status == SUCCESSFUL


def test_the_dead_of_others_are_not_forgotten_for_it(monkeypatch):
    monkeypatch.setattr(unverified, "REMEMBERED", 0)
    dead = run(app_tasks.fail.enqueue())
    stranger = app_tasks.add.enqueue(1)
    Stored(stranger).payload = "damaged"
    run_burst()
    assert Stored(dead).dead and Stored(stranger).dead


def test_while_the_database_cannot_be_asked_it_is_handed_back(monkeypatch):
    monkeypatch.setattr(unverified, "REMEMBERED", 0)
    result = app_tasks.add.enqueue(1)
    stored = Stored(result)
    stored.payload = "damaged"

    def away(members):
        raise InterfaceError

    monkeypatch.setattr(unverified.ledger, "load_jobs", away)
    before = stored.jobs.broker.now_ms()
    run_burst()
    assert not stored.dead
    assert stored.wakes_ms >= before + 20_000


# -- signed by the version before, which did not say the queue


#: As it signed them with the key of these tests.
BEFORE = (
    "XZkyYF9yrOWRgPTIWtCbL8G8OiI12S6n\n"
    '{"task":"tests.app.tasks.add","args":[5],"kwargs":{},"enqueued":1700000000000,"backend":"default"}'
)
TRIED_BEFORE = (
    "3fWh9daoHEN7N10NVPSn7x+zvQ1Yb0Ar\n"
    '{"task":"tests.app.tasks.add","args":[5],"kwargs":{},"enqueued":1700000000000,"backend":"default"}\n'
    '{"status":"","started":1,"attempted":1,"finished":null,"workers":["w-1"],"value":null,'
    '"errors":[["builtins.RuntimeError","no luck"]]}'
)
OLD_MEMBER = f"j{'A' * 22}"


@dataclass
class CallBefore:
    """The call as that version reads it: what it does not know it refuses."""

    task: str
    args: list
    kwargs: dict
    backend: str
    enqueued: int
    priority: int = 0
    run_after: int | None = None
    unique: str = ""
    max_attempts: int | None = None
    backoff: float | None = None
    timeout: float | None = None
    durable: bool = False


def put_old(part, text):
    """Have a job of the version before where it belongs; return it."""
    stored = Stored(SimpleNamespace(id=f"default.{OLD_MEMBER[1:]}"))
    stored.payload = text
    stored.client.zadd(stored.names[part], {stored.member: to_ms(utcnow())})
    stored.client.zadd(stored.names["due"], {keys.POINTER: 1})
    return stored


@pytest.mark.parametrize("text", [BEFORE, TRIED_BEFORE])
def test_a_job_of_the_version_before_is_executed_and_its_result_says_its_queue(text):
    stored = put_old("ready", text)
    run_burst()
    assert app_tasks.CALLS == [(5, 1)]
    _, line, _ = stored.result.split("\n")
    assert line.startswith(f'{{"backend":"{stored.jobs.broker.config.prefix}:default","task":')


@pytest.mark.parametrize("text", [BEFORE, TRIED_BEFORE])
def test_a_dead_job_of_the_version_before_is_revived_and_then_says_its_queue(text, settings):
    stored = put_old("dead", text)
    assert operating.revive(stored.jobs.broker, f"default.{OLD_MEMBER[1:]}") == operating.Outcome.DONE
    settings.DELAYQ = {**settings.DELAYQ, "ACCEPT_JOBS_WITHOUT_QUEUE": False}
    run_burst()
    assert app_tasks.CALLS == [(5, 1)]


def test_once_the_settings_say_so_it_is_handed_back_then_dead_and_can_be_retried_where_they_do_not(settings):
    stored = put_old("ready", BEFORE)
    settings.DELAYQ = {**settings.DELAYQ, "ACCEPT_JOBS_WITHOUT_QUEUE": False}
    wanted = f"default.{OLD_MEMBER[1:]}"
    with live_worker():
        wait_until(lambda: find_job(stored.jobs.broker, wanted).state == JobState.WAITING, what="to be handed back")
        assert operating.run_now(stored.jobs.broker, wanted) == operating.Outcome.DONE
        wait_until(lambda: stored.dead, what="its end")
    assert operating.revive(stored.jobs.broker, wanted) == operating.Outcome.UNREADABLE
    settings.DELAYQ = {**settings.DELAYQ, "ACCEPT_JOBS_WITHOUT_QUEUE": True}
    assert operating.revive(stored.jobs.broker, wanted) == operating.Outcome.DONE
    run_burst()
    assert app_tasks.CALLS == [(5, 1)]


def test_the_version_before_reads_what_this_one_signs():
    result = app_tasks.add.using(priority=3, max_attempts=2, unique_key="k").enqueue(1, b=2)
    stored = Stored(result)
    signature, _, text = stored.payload.partition("\n")
    verify(stored.member, text, signature)
    _, call, _ = decode("default", stored.member, stored.payload)
    before = asdict(CallBefore(**json.loads(text.partition("\n")[0])))
    assert {**before, "on_success": "", "on_failure": ""} == asdict(call)


def test_what_the_version_before_signs_anew_still_says_its_queue(settings):
    """It keeps the line as it found it, and puts another state behind it; also into rows."""
    settings.DELAYQ = {**settings.DELAYQ, "ACCEPT_JOBS_WITHOUT_QUEUE": False}
    stored = Stored(app_tasks.add.enqueue(1))
    line = stored.payload.split("\n")[1]
    text = f"{line}\n{encode_state(State(workers=['w-1']))}"
    again = f"{sign(stored.member, text)}\n{text}"
    assert decode("default", stored.member, again)[2].workers == ["w-1"]
    assert encode("default", stored.member, line) == stored.payload, "it is not said twice"
    with pytest.raises(ForgedJob, match=r":default', but stands in .*:mail\."):
        decode("mail", stored.member, again)


# -- signed with our key, by a later version


@pytest.fixture
def newer():
    """A job that waits, whose text has a field that this version does not know."""
    result = app_tasks.add.using(priority=3).enqueue(1)
    stored = Stored(result)
    _, line = stored.payload.split("\n")
    stored.payload = encode(stored.queue, stored.member, json.dumps({**json.loads(line), "colour": "blue"}))
    return result


def test_a_text_of_a_later_version_is_told_as_such_and_can_be_cancelled(newer):
    stored = Stored(newer)
    seen = find_job(stored.jobs.broker, newer.id)
    assert (seen.flaw, seen.call, seen.record) == (Flaw.UNREADABLE, None, None)
    with pytest.raises(TaskResultDoesNotExist):
        newer.refresh()
    assert operating.cancel(stored.jobs.broker, newer.id) == operating.Outcome.DONE
    assert stored.gone()


def test_a_dead_one_of_a_later_version_is_neither_revived_nor_touched(newer):
    stored = Stored(newer)
    names, text = stored.names, stored.payload
    stored.client.zrem(names["ready"], stored.member)
    stored.client.zadd(names["dead"], {stored.member: to_ms(utcnow())})
    assert operating.revive(stored.jobs.broker, newer.id) == operating.Outcome.UNREADABLE
    assert (stored.dead, stored.payload) == (True, text)


def test_texts_are_plain_ascii_lines():
    """Whatever an argument holds cannot end a line of the text that is signed."""
    result = tasks.echo.enqueue("\n\u2028\x00\udcff\u00e9", a="\r\n")
    text = Stored(result).payload
    assert text.isascii()
    assert text.count("\n") == 1
    _, call, state = decode("default", Stored(result).member, text)
    assert (call.args, state.status) == (["\n\u2028\x00\udcff\u00e9"], "")
    assert encode("default", Stored(result).member, text.split("\n")[1]) == text
