"""The calculator agrees with what was measured in two configurations (docs/size.md), and refuses what is no number."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from django_delayq.capacity import capacity


def told(*args):
    out = io.StringIO()
    call_command("delayq_capacity", *args, stdout=out)
    return out.getvalue()


def test_a_million_schedules_with_ten_million_runs_as_measured() -> None:
    found = capacity(schedules=1e6, points=10e6 / 86_400 / 30, days=30)
    assert found.database_bytes == pytest.approx((511 + 195 + 2987) * 2**20, rel=0.15)
    assert found.redis_bytes == pytest.approx(186e6, rel=0.15)
    assert (found.workers, found.shards) == (1, 1)


def test_ten_thousand_schedules_that_one_process_was_busy_with_as_measured() -> None:
    found = capacity(schedules=10_000, points=5_200 * 0.6)
    assert found.workers == 1
    assert capacity(schedules=10_000, points=5_200).workers == 2
    assert found.workers_bytes == pytest.approx(65 * 2**20, rel=0.1)


def test_tasks_that_wait_take_threads_and_not_processes() -> None:
    found = capacity(schedules=1, points=100, task_seconds=0.5)
    assert (found.workers, found.threads) == (1, 84)


def test_the_command_says_it_in_words_and_in_json() -> None:
    options = "--schedules", "5e6", "--points-per-second", "2_000", "--days", "7"
    assert json.loads(told(*options, "--json"))["redis_bytes"] == 950_000_000
    assert "Redis                  905 MiB beside jobs\n" in told(*options)


@pytest.mark.parametrize("text", ["many", "-1", "nan", "1e99"])
def test_what_is_no_number_is_refused(text) -> None:
    with pytest.raises(CommandError, match="Write 5000000"):
        told(f"--schedules={text}")
