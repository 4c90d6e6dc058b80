"""A rebuild in parts: what is due first, several workers, one of them gone. See `mirror/rebuild.py`, Note [Shared]."""

import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from django_delayq import mirror
from django_delayq.broker import Broker
from django_delayq.fields import utcnow
from tests.integration.mirroring import mirrored, schedule

pytestmark = pytest.mark.django_db(transaction=True)
rebuilding = sys.modules["django_delayq.mirror.rebuild"]


@pytest.fixture
def ranges(monkeypatch):
    """Rebuilds in ranges of two primary keys, the two that are due first before them; the broker of another worker."""
    monkeypatch.setattr(rebuilding, "RANGE", 2)
    monkeypatch.setattr(rebuilding, "FIRST", 2)
    return Broker(timeout_seconds=5, worker="other")


@pytest.fixture
def written(monkeypatch):
    """Who wrote which schedules back, in their order; `then` is called once, before the second page."""
    real, found = rebuilding.write_wanted, SimpleNamespace(pages=[], then=None)

    def noting(broker, wanted, **kwargs):
        if found.pages and found.then is not None:
            then, found.then = found.then, None
            then()
        found.pages.append((broker.worker, [item.pk for item in wanted]))
        return real(broker, wanted, **kwargs)

    monkeypatch.setattr(rebuilding, "write_wanted", noting)
    return found


def hourly(count):
    """Schedules of which the last one is due first."""
    start = utcnow() + timedelta(hours=1)
    return [
        schedule(
            f"s{n}", kind="every", cron="", every=timedelta(hours=1), start_at=start + timedelta(minutes=count - n)
        )
        for n in range(count)
    ]


def test_what_is_due_first_goes_back_first(built, ranges, written):
    rows = hourly(6)
    built.purge()
    assert mirror.rebuild(built, built.shards())
    assert written.pages[0][1] == sorted(row.pk for row in rows[-2:])
    assert all(mirrored(built, row) for row in rows)


def test_another_worker_takes_part_and_whoever_ends_last_calls_the_shards_built(built, ranges, written):
    rows, joined = hourly(6), []
    built.purge()
    written.then = lambda: joined.append(mirror.rebuild(ranges, ranges.shards()[:1]))
    assert mirror.rebuild(built, built.shards())
    assert joined == [False], "a part was still at work"
    assert {who for who, _ in written.pages} == {built.worker, "other"}
    twice = [pk for _, page in written.pages[1:] for pk in page]
    assert sorted(twice) == sorted(row.pk for row in rows), "each range is written once, by one of them"
    assert all(mirrored(built, row) for row in rows)
    assert not any(epoch.startswith("building:") for epoch in built.epochs(built.shards()))


def test_a_flush_voids_what_all_have_done_of_a_rebuild(built, ranges, written):
    rows = hourly(6)
    built.purge()

    def join_and_flush():
        assert not mirror.rebuild(ranges, ranges.shards())
        ranges.purge()

    written.then = join_and_flush
    assert not mirror.rebuild(built, built.shards())
    assert built.epochs(built.shards()) == [None, None]
    assert mirror.rebuild(ranges, ranges.shards())
    assert all(mirrored(built, row) for row in rows)


def test_the_part_of_a_worker_that_died_is_taken_over(built, ranges, written):
    rows = hourly(6)
    built.purge()

    def die():
        raise KeyboardInterrupt

    written.then = die
    with pytest.raises(KeyboardInterrupt):
        mirror.rebuild(built, built.shards())
    assert not mirror.rebuild(ranges, ranges.shards()), "its mark still stands"
    assert not all(mirrored(built, row) for row in rows)
    marks = [key for key in built.client.scan_iter("*:build:*") if built.client.get(key) == b"taken"]
    assert len(marks) == 1
    assert 0 < built.client.pttl(marks[0]) <= rebuilding.TTL_MS
    built.client.delete(*marks)  # its time is over
    assert mirror.rebuild(ranges, ranges.shards())
    assert all(mirrored(built, row) for row in rows)


def test_sparse_primary_keys_are_cut_into_a_bounded_number_of_parts(built, ranges):
    row = schedule()
    far = schedule("far", pk=10**12)
    built.purge()
    assert len(rebuilding._cut(built, built.shards())) < rebuilding.MOST_RANGES + 5
    assert mirror.rebuild(built, built.shards())
    assert mirrored(built, row)
    assert mirrored(built, far)
