"""Damaged entries: the full sweep mends them, says so, and finds nothing the next time."""

import pytest

from django_delayq import actions, sync
from django_delayq.index import keys
from django_delayq.models import Run, Schedule, Status
from django_delayq.recurrence import to_ms
from django_delayq.recurrence.point import utcnow
from tests.integration.mirroring import absent, mirrored, schedule, set_due, view
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)


DAMAGES = [
    ("nothing", lambda b, row: None, ""),
    ("entry lost", lambda b, row: b.remove(b.list_shards()[0], [(f"s{row.pk}", 10**15, "")]), "added"),
    ("point is garbage", lambda b, row: set_due(b, row, "point", "garbage"), "repaired"),
    ("generation is garbage", lambda b, row: set_due(b, row, "gen", "garbage"), "repaired"),
    ("generation ahead", lambda b, row: set_due(b, row, "gen", row.generation + 10**9), "set back"),
    ("generation behind", lambda b, row: set_due(b, row, "gen", 5), "updated"),
    ("point ahead", lambda b, row: set_due(b, row, "point", to_ms(utcnow()) + 10**9), "rewound"),
    ("score far ahead", lambda b, row: set_due(b, row, "due", 9 * 10**15), ""),
    ("score endless", lambda b, row: set_due(b, row, "due", float("inf")), ""),
    ("score lost", lambda b, row: b.client.zrem(f"{{{b.config.prefix}:default:0}}:due", f"s{row.pk}"), "repaired"),
    ("score of the past", lambda b, row: set_due(b, row, "due", 5), "reset, its wake-up"),
    ("score below all", lambda b, row: set_due(b, row, "due", float("-inf")), ""),
    ("point lost", lambda b, row: b.client.hdel(f"{{{b.config.prefix}:default:0}}:point", f"s{row.pk}"), "repaired"),
    ("generation lost", lambda b, row: b.client.hdel(f"{{{b.config.prefix}:default:0}}:gen", f"s{row.pk}"), "repaired"),
    ("point behind", lambda b, row: set_due(b, row, "point", view(b, row).point_ms - 1), "reset, its point in Redis"),
    ("attempts of nobody", lambda b, row: set_due(b, row, "attempts", "3"), "reset, attempts"),
    ("a lease that no worker can hold",
     lambda b, row: (set_due(b, row, "lease", "f"), set_due(b, row, "due", 9 * 10**12)), "reset, its lease"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_a_full_sweep_mends_what_differs_says_so_and_finds_nothing_the_next_time(built, damage, word):
    row, other = schedule("a"), schedule("b")
    score = view(built, row).score_ms
    damage(built, row)
    damaged = view(built, row)
    dry = sync.sweep_fully(built, dry_run=True)
    assert view(built, row) == damaged, "a dry run changes nothing"
    report = sync.sweep_fully(built)
    assert report.lines == dry.lines
    assert report.checked == 2
    if word:
        assert len(report.lines) == 1
        assert report.lines[0].startswith(f"a: {word}")
    assert mirrored(built, row)
    assert mirrored(built, other)
    assert view(built, row).score_ms == score
    assert sync.sweep_fully(built).lines == []


def test_a_garbage_point_of_the_past_is_woken_and_moved_on_by_its_claimer(built):
    row = schedule()
    before = view(built, row)
    set_due(built, row, "point", 5)
    dry = sync.sweep_fully(built, dry_run=True)
    assert dry.lines == ["s: reset, its point in Redis was earlier than its next due point"]
    assert sync.sweep_fully(built).lines == dry.lines
    assert view(built, row).score_ms <= built.read_now_ms()
    run_burst()
    assert view(built, row) == before
    assert not Run.objects.exists()


PARTS = [("due", 5), ("due", 10**13), ("point", 5), ("point", "x"), ("gen", "7"), ("gen", "x"), ("lease", "f"),
         ("attempts", "1"), ("attempts", "x")]  # fmt: skip


@pytest.mark.parametrize(("part", "value"), PARTS)
@pytest.mark.parametrize("gone", [False, True])
def test_what_is_left_of_a_schedule_that_waits_for_nothing_or_is_gone_is_removed(built, part, value, gone):
    row = schedule()
    if gone:
        Schedule.objects.all().delete()
    else:
        row.pause()
    assert absent(built, row)
    set_due(built, row, part, value)
    dry = sync.sweep_fully(built, dry_run=True)
    (line,) = sync.sweep_fully(built).lines
    assert dry.lines == [line]
    assert gone or line == "s: removed, it has no due point to wait for"
    assert not list(built.scan(built.list_shards()[0]))
    assert sync.sweep_fully(built).lines == []


RUN_DAMAGES = [
    ("score lost", "due", None, "put back"),
    ("score far ahead", "due", 9 * 10**15, "repaired"),
    ("point lost", "point", None, "repaired"),
    ("point is garbage", "point", "x", "repaired"),
    ("generation lost", "gen", None, "put back"),
]


@pytest.mark.parametrize(("part", "value", "word"), [row[1:] for row in RUN_DAMAGES], ids=[r[0] for r in RUN_DAMAGES])
def test_a_damaged_run_member_is_mended(built, part, value, word):
    run = actions.run_now(schedule())
    member = f"r{run.pk}"
    names = keys.build_keys(built.config.prefix, built.list_shards()[0])
    if part == "due":
        built.client.zrem(names["due"], member) if value is None else built.client.zadd(names["due"], {member: value})
    else:
        built.client.hdel(names[part], member) if value is None else built.client.hset(names[part], member, value)
    dry = sync.sweep_fully(built, dry_run=True)
    report = sync.sweep_fully(built)
    assert report.lines == dry.lines
    assert len(report.lines) == 1
    assert word in report.lines[0]
    assert sync.sweep_fully(built).lines == []
    run_burst()
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED
    assert member not in set().union(*built.scan(built.list_shards()[0]))


LOSSES = [
    ("all scores", lambda client, due, rows: client.delete(due)),
    ("one score", lambda client, due, rows: client.zrem(due, rows[0])),
    ("an endless score", lambda client, due, rows: client.zadd(due, {rows[0]: float("inf")})),
    ("a score behind all years", lambda client, due, rows: client.zadd(due, {rows[0]: 9e15})),
]


@pytest.mark.parametrize("lose", [row[1] for row in LOSSES], ids=[row[0] for row in LOSSES])
def test_a_full_sweep_puts_lost_scores_back(built, lose):
    rows = [schedule("a"), schedule("b")]
    before = [view(built, row) for row in rows]
    sync.sweep_now(built)
    lose(built.client, f"{{{built.config.prefix}:default:0}}:due", [f"s{row.pk}" for row in rows])
    sync.sweep_now(built)
    assert [view(built, row) for row in rows] == before


def test_a_lost_lease_score_comes_back_with_its_renewal(built):
    row, shard = schedule(), built.list_shards()[0]
    set_due(built, row, "due", 5)
    set_due(built, row, "point", 5)
    claim = built.claim(shard, limit=1, lease_ms=60_000, request=1)
    score = view(built, row).score_ms
    built.client.delete(f"{{{built.config.prefix}:default:0}}:due")
    assert not built.renew(shard, [(f"s{row.pk}", claim.holder)], lease_ms=60_000)
    assert score <= view(built, row).score_ms < score + 10_000
