"""Real workers of another release, side by side: who waits, who ends, what is lost."""

import json

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from tests.acceptance.processes import due_now, every_second, no_point_is_missing, stop, wait_for_workers
from tests.acceptance.support import PATIENCE_SECONDS, lines, output_of, wait_until, worker

pytestmark = pytest.mark.django_db(transaction=True)
OUTDATED = 78


def release(layout):
    """Return the environment of a worker of a release with this layout."""
    return {"DELAYQ_TEST_LAYOUT": str(layout)}


def goes_on(row):
    """Wait for two more points of a schedule."""
    count = row.runs.finished().count()
    wait_until(lambda: row.runs.finished().count() >= count + 2)


@pytest.fixture
def migrate():
    """Call it as `migrate` of a release with the layout 2 would be."""
    recorder, name = MigrationRecorder(connection), "9999_layout_2"
    yield lambda: recorder.record_applied("django_delayq", name)
    recorder.record_unapplied("django_delayq", name)


def test_a_release_of_a_higher_layout_waits_for_migrate_and_then_takes_over_from_workers_that_drain(
    broker, migrate, tmp_path
):
    row, path, gate = every_second(), tmp_path / "f", tmp_path / "gate"
    with worker() as old, worker("--processes", "1") as supervised:
        wait_for_workers(broker, 2)
        due_now(broker, "long", "note", path=str(path), gate=str(gate))
        wait_until(lambda: lines(path))
        with worker(environment=release(2)) as new:
            wait_until(lambda: "whose layout is 1. Run: manage.py migrate" in output_of(new))
            goes_on(row)
            migrate()
            wait_until(lambda: "Waiting until these workers" in output_of(new))
            wait_until(
                lambda: "layout 2 of a later release" in output_of(old) + output_of(supervised)
            )  # next heartbeat
            gate.touch()
            assert old.wait(PATIENCE_SECONDS) == OUTDATED
            assert supervised.wait(PATIENCE_SECONDS) == OUTDATED, "it does not start the same release again"
            assert "Traceback" not in output_of(old) + output_of(supervised)
            wait_until(lambda: "the index is built anew" in output_of(new))
            goes_on(row)
            for arguments in ((), ("--processes", "1")):
                with worker(*arguments) as again:
                    assert again.wait(PATIENCE_SECONDS) == OUTDATED
                    assert output_of(again).count("It must not run beside the later release") == 1
            assert stop(new) == 0
    no_point_is_missing(row)
    assert len(lines(path)) == 2, "it was executed once"
    assert json.loads(broker.read_layout())["version"] == 2
