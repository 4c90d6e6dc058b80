"""A move to another number of shards that did not come to its end, as status, health line and commands tell it."""

import json
from datetime import timedelta

import pytest
from django.core.management import call_command

from django_delayq import mirror
from django_delayq.broker import Broker
from django_delayq.broker.keys import member_shard
from tests.integration.admin_pages import LIST, change_url
from tests.integration.mirroring import schedule
from tests.integration.probing import ask, beat, build, codes, text
from tests.support import make_due

pytestmark = pytest.mark.django_db(transaction=True)


class Killed(BaseException):
    """What interrupts a move."""


def say(line):
    """Hear what a move tells."""


@pytest.fixture
def held(broker, settings):
    """A schedule that a worker holds, while the settings name another number of shards for its queue than Redis."""
    build(broker)
    row = schedule(kind="every", cron="", every=timedelta(days=1))
    schedule("mail", queue="mail")
    make_due(broker, row)
    claim = broker.claim(broker.shards(["default"])[0], limit=1, lease_ms=30_000, request=1)
    assert len(claim.entries) == 1
    count = next(count for count in range(2, 99) if member_shard(f"s{row.pk}", "default", count).number)
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": {"default": count}}  # so that it has to move
    moved = Broker(timeout_seconds=5, worker="test")
    beat(moved)
    yield moved
    moved.close()


def interrupt(broker, look=lambda: None):
    """Begin a move and end it where it waits for what is held."""

    def pause(_seconds):
        look()
        raise Killed

    with pytest.raises(Killed):
        mirror.reshard(broker, say=say, pause=pause)


def test_an_interrupted_move_is_wrong_and_says_what_to_run_until_it_was_run(held):
    interrupt(held)
    code, found = ask()
    assert (code, found["reshard"]) == (1, {"queues": ["default"], "under_way": False})
    (problem,) = found["problems"]
    assert (problem["code"], problem["queue"]) == ("unfinished_reshard", "default")
    assert problem["message"].endswith("Run it again: manage.py delayq_sync --reshard")
    assert "Reshard    default: interrupted" in text().splitlines()
    held.take_over(held.shards(["default"]))  # whoever held it has ended
    call_command("delayq_sync", "--reshard")
    code, found = ask()
    assert (code, found["reshard"]) == (0, {"queues": [], "under_way": False})
    assert "Reshard" not in text()


def test_a_move_that_is_under_way_is_told_and_not_wrong(held):
    seen = []
    interrupt(held, lambda: seen.append((ask(), text())))
    (((code, found), shown),) = seen
    assert (code, found["reshard"]) == (0, {"queues": ["default"], "under_way": True})
    assert "Reshard    default: under way" in shown.splitlines()


@pytest.mark.parametrize(("mark", "wrong"), [("reshard:of somebody", []), ("of a sweep", ["unfinished_reshard"])])
def test_the_mark_of_a_sweep_is_none_of_a_move(held, mark, wrong):
    interrupt(held)
    held.seize_upkeep(mark)
    assert codes()[1] == wrong


def test_a_move_that_lost_its_mark_takes_it_again(held):
    seen = []

    def pause(_seconds):
        seen.append(mirror.under_way(held))
        held.note_sweep(None)
        if len(seen) == 2:
            raise Killed

    with pytest.raises(Killed):
        mirror.reshard(held, say=say, pause=pause)
    assert seen == [True, True]


def test_the_health_line_of_the_admin_tells_an_interrupted_move_where_it_matters(boss, held):
    interrupt(held)
    here, there = schedule("here"), schedule("there", queue="mail")
    for url in (LIST, change_url(here)):
        assert "delayq_sync --reshard" in boss.get(url).content.decode()
    assert "delayq_sync --reshard" not in boss.get(change_url(there)).content.decode()


def test_the_move_of_a_queue_that_only_other_settings_know_is_not_ours_to_finish(held):
    interrupt(held)
    layout = json.loads(held.layout())
    layout["former"] = {"bulk": 2}
    held.write_layout(json.dumps(layout))
    assert ask()[1]["reshard"]["queues"] == []
