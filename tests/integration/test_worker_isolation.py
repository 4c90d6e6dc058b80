"""Rule R6: take-overs are counted where they begin, and from the second one on a suspect runs alone in its process."""

import time
from itertools import pairwise

import pytest

from django_delayq.index import Broker
from django_delayq.models import Run, Status
from django_delayq.worker import dispatch, suspects
from django_delayq.worker.options import OK
from tests.acceptance.support import lines, wait_until
from tests.integration.mirroring import Running, idle_worker, schedule, set_due, view
from tests.support import make_due, run_burst

pytestmark = pytest.mark.django_db(transaction=True)


def note(name, path, seconds=0.0, gate=""):
    kwargs = {"path": str(path), "text": name, "seconds": seconds, "gate": str(gate)}
    return schedule(name, task="tests.app.tasks.note", kwargs=kwargs)


def died(broker, *rows, reclaims=None, lapsed=True):
    """Make points due that a worker has claimed and not finished; its leases have run out, or do so at `lapse`.

    With `reclaims`, there are `running` rows that count so many take-overs.
    """
    for row in rows:
        point = make_due(broker, row)
        if reclaims is not None:
            Run.build_for(row, point, status=Status.RUNNING, reclaims=reclaims, fence="old", worker="dead").save()
    dead = Broker(timeout_seconds=5, worker=f"dead of {rows[0].name}")
    claim = dead.claim(dead.list_shards()[0], limit=1000, lease_ms=0 if lapsed else 3_600_000, request=1)
    dead.close()
    assert {entry.member for entry in claim.entries} >= {f"s{row.pk}" for row in rows}


def lapse(broker, row):
    """Let the lease of a dead worker run out, and tell those that sleep until its end."""
    set_due(broker, row, "due", broker.read_now_ms())
    broker.client.publish(f"{broker.config.prefix}:wake", f"default:0 {broker.read_now_ms()}")


@pytest.fixture
def patient(monkeypatch):
    """A suspect waits for its turn for as long as this test takes."""
    monkeypatch.setattr(suspects, "ALONE_WITHIN_SECONDS", 600)


@pytest.fixture
def suspected(broker, tmp_path):
    """A suspect whose worker died, what is busy before it, and the gate at which that ends."""
    path, gate = tmp_path / "f", tmp_path / "gate"
    suspect = note("suspect", path)
    died(broker, suspect, reclaims=1, lapsed=False)
    make_due(broker, note("busy", path, gate=gate))
    return suspect, path, gate


def waits_behind(running, broker, suspect, path):
    """Once something runs, let the suspect be claimed; return when it waits for its turn."""
    wait_until(lambda: lines(path), what="what runs before the suspect")
    lapse(broker, suspect)
    wait_until(lambda: running.worker.dispatcher.isolation.waiting, what="the suspect to wait")


def spans(path):
    """Return (start, end) of each text that has both."""
    times = {}
    for what, name, _, moment in lines(path):
        times.setdefault(name, {})[what] = float(moment)
    return {name: (found["start"], found["end"]) for name, found in times.items() if len(found) == 2}


def test_a_take_over_counts_when_a_slot_is_free_for_it_and_not_before(broker, tmp_path):
    """What waited in a process that died was not its killer."""
    rows = [note(f"s{n}", tmp_path / "f") for n in range(3)]
    died(broker, *rows)
    worker = idle_worker()
    worker.slots._mean = 0.001  # so that more is claimed than there are slots
    worker.slots._last_end = time.monotonic()
    worker.tick()
    assert len(worker.keeper) == 3
    assert list(Run.objects.values_list("reclaims", flat=True)) == [1]
    worker.dispatcher.release_waiting()
    worker.broker.close()


def test_a_take_over_is_not_overtaken_for_ever_by_what_is_claimed_ahead(broker, tmp_path):
    """Short tasks keep the slots' inbox filled, and a take-over waits for a slot that is free."""
    died(broker, note("s", tmp_path / "f"))
    worker = idle_worker()
    worker.slots.busy = 1
    worker.slots._mean, worker.slots._last_end = 0.001, time.monotonic()
    assert worker.dispatcher.count_room() == worker.config.batch_size
    worker.tick()
    assert len(worker.keeper) == 1
    assert worker.dispatcher.count_room() == 0
    worker.slots.busy = 0
    worker.tick()
    assert worker.slots.waiting == 1
    worker.dispatcher.release_all()
    worker.broker.close()


def test_what_was_handed_back_is_a_suspect_for_the_next_one_too(broker, tmp_path):
    died(broker, note("s", tmp_path / "f"))
    for _ in range(3):
        worker = idle_worker()
        worker.slots.busy = 1  # something else runs in its only slot
        worker.slots._mean, worker.slots._last_end = 0.001, time.monotonic()
        worker.tick()
        assert len(worker.keeper) == 1
        worker.dispatcher.release_all()
        worker.broker.close()
    assert not Run.objects.exists(), "it was not executed, so nothing counts"
    run_burst(queues=("default",))
    assert (Run.objects.get().status, Run.objects.get().reclaims) == (Status.SUCCEEDED, 1)


def test_the_first_take_over_runs_beside_others(broker, tmp_path):
    path, gate = tmp_path / "f", tmp_path / "gate"
    suspect, other = note("suspect", path, gate=gate), note("other", path, gate=gate)
    died(broker, suspect, reclaims=0)
    make_due(broker, other)
    with Running():
        wait_until(lambda: len(lines(path)) == 2, what="both to have begun")
        gate.touch()
        wait_until(lambda: len(spans(path)) == 2)
    assert Run.objects.get(schedule=suspect).reclaims == 1


def test_from_the_second_take_over_on_a_suspect_runs_alone(broker, tmp_path, patient):
    path, gate = tmp_path / "f", tmp_path / "gate"
    before, suspect, after = note("before", path, gate=gate), note("suspect", path, 0.5), note("after", path, 0.1)
    died(broker, suspect, reclaims=1, lapsed=False)
    make_due(broker, before)
    with Running() as running:
        waits_behind(running, broker, suspect, path)
        make_due(broker, after)
        claims = sum(running.worker.claims._request.values())
        gate.touch()
        wait_until(lambda: any(words[1] == "suspect" for words in lines(path)), 30)
        assert sum(running.worker.claims._request.values()) == claims, "it claimed what it must not start"
        wait_until(lambda: Run.objects.filter(status=Status.SUCCEEDED).count() == 3, 30)
    when = spans(path)
    assert when["before"][1] <= when["suspect"][0], "what ran was not let finish"
    assert when["suspect"][1] <= when["after"][0], "something was started beside the suspect"
    recorded = Run.objects.get(schedule=before).created_at.timestamp()
    assert recorded <= when["suspect"][0], "what had run was not recorded before"
    assert Run.objects.get(schedule=suspect).reclaims == 2


def test_several_suspects_run_one_after_the_other(broker, tmp_path):
    path = tmp_path / "f"
    died(broker, note("s0", path, 0.15), note("s1", path, 0.15), reclaims=1)
    died(broker, note("s2", path, 0.15), reclaims=2)
    make_due(broker, note("beside", path, 0.15))
    run_burst(queues=("default",), threads=4)
    ordered = sorted(spans(path).values())
    assert len(ordered) == 4
    assert all(end <= start for (_, end), (start, _) in pairwise(ordered))
    assert set(Run.objects.values_list("status", flat=True)) == {"succeeded"}


def test_where_a_single_take_over_is_allowed_it_runs_alone(broker, tmp_path, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MAX_RECLAIMS": 1}
    path = tmp_path / "f"
    died(broker, note("s0", path, 0.15), note("s1", path, 0.15))
    run_burst(queues=("default",), threads=4)
    (_, end), (start, _) = sorted(spans(path).values())
    assert end <= start


def test_a_drain_hands_a_waiting_suspect_back_uncounted(broker, suspected, patient):
    suspect, path, gate = suspected
    running = Running()
    waits_behind(running, broker, suspect, path)
    running.worker.stop()
    wait_until(lambda: not running.worker.dispatcher.isolation.waiting)
    gate.touch()
    assert running.ended() == OK
    run = Run.objects.get(schedule=suspect)
    assert (run.reclaims, run.status) == (1, Status.RUNNING)
    assert view(broker, suspect).score_ms <= broker.read_now_ms()
    assert [words[1] for words in lines(path)] == ["busy", "busy"]


def test_a_suspect_does_not_wait_for_ever_behind_a_long_task(broker, tmp_path, patient, monkeypatch):
    """It is handed back for another worker, uncounted, and this one goes on claiming."""
    path, other, gate = tmp_path / "f", tmp_path / "g", tmp_path / "gate"
    monkeypatch.setattr(dispatch, "REFUSED_MS", 2_000)
    suspect = note("suspect", path)
    died(broker, suspect, reclaims=1, lapsed=False)
    make_due(broker, note("long", path, gate=gate))
    with Running() as running:
        waits_behind(running, broker, suspect, path)
        waited_ms = broker.read_now_ms()
        monkeypatch.setattr(suspects, "ALONE_WITHIN_SECONDS", 0.0)  # as if it had waited for so long
        running.worker.wake()
        wait_until(lambda: not running.worker.dispatcher.isolation.is_active())
        assert view(broker, suspect).score_ms > waited_ms
        make_due(broker, note("meanwhile", other))
        wait_until(lambda: len(lines(other)) == 2, 30)
        assert len(lines(path)) == 1, "the long task has not ended"
        assert Run.objects.get(schedule=suspect).reclaims == 1
        monkeypatch.setattr(suspects, "ALONE_WITHIN_SECONDS", 600)
        gate.touch()
        wait_until(lambda: Run.objects.filter(schedule=suspect, status=Status.SUCCEEDED).exists(), 60)


def test_a_suspect_whose_schedule_is_disabled_while_it_waits_is_not_started(broker, suspected, patient):
    suspect, path, gate = suspected
    with Running() as running:
        waits_behind(running, broker, suspect, path)
        suspect.refresh_from_db()
        suspect.pause()
        gate.touch()
        wait_until(lambda: Run.objects.filter(schedule=suspect, status=Status.LOST).exists(), 30)
    assert Run.objects.get(schedule=suspect, status=Status.LOST).reason == "paused"
    assert [words[1] for words in lines(path)] == ["busy", "busy"]


def test_the_lease_of_a_suspect_is_renewed_while_it_waits(broker, suspected, settings, patient):
    settings.DELAYQ = {**settings.DELAYQ, "LEASE_SECONDS": 3}
    suspect, path, gate = suspected
    with Running() as running:
        waits_behind(running, broker, suspect, path)
        (held,) = running.worker.dispatcher.isolation.waiting
        end_ms = view(broker, suspect).score_ms
        wait_until(lambda: view(broker, suspect).score_ms > end_ms, what="the lease to be renewed")
        gate.touch()
        wait_until(lambda: Run.objects.filter(schedule=suspect, status=Status.SUCCEEDED).exists(), 30)
    assert Run.objects.get(schedule=suspect).fence == held.fence, "it was claimed once"
    assert spans(path)["busy"][1] <= spans(path)["suspect"][0]
