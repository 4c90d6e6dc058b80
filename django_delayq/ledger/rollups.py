"""The table of counts, one row per minute or hour. See `index/counters.py`, Note [Counts are approximate]."""

from collections.abc import Iterator
from datetime import UTC, datetime

from django.db.models import QuerySet

from ..index.counters import Counts, Key, Tally, add_up
from ..models import Rollup
from .bulk import get_database, writing

MINUTE, HOUR = 60, 3600
#: Maximum rows merged or deleted per transaction.
BATCH = 500


def add_minute(at: datetime, counts: Counts) -> None:
    """Insert the counts of a minute. Existing rows stay unchanged, so a repeated call counts nothing twice."""
    rows = [Rollup(at=at, seconds=MINUTE, **_build_fields(key), counts=tally) for key, tally in counts.items()]
    with writing(get_database()):
        _query_rows().bulk_create(rows, batch_size=BATCH, ignore_conflicts=True)


def merge_minutes(before: datetime) -> int:
    """Merge up to BATCH minutes before this instant into their hours, each once; return how many. Raises Overtaken."""
    minutes = list(_query_rows().filter(seconds=MINUTE, at__lt=before).order_by("at")[:BATCH])
    if not minutes:
        return 0
    sums: dict[tuple[datetime, Key], Tally] = {}
    for row in minutes:
        place = row.at.astimezone(UTC).replace(minute=0), (row.kind, row.queue, row.task)
        add_up(sums.setdefault(place, {}), row.counts)
    with writing(get_database()):
        deleted, _ = _query_rows().filter(pk__in=[row.pk for row in minutes]).delete()  # first: this locks them
        if deleted != len(minutes):
            raise Overtaken
        hours = _query_rows().filter(seconds=HOUR, at__in={at for at, _ in sums})
        changed = []
        for hour in hours:
            more = sums.pop((hour.at, (hour.kind, hour.queue, hour.task)), None)
            if more is not None:
                add_up(hour.counts, more)
                changed.append(hour)
        _query_rows().bulk_update(changed, ["counts"], batch_size=BATCH)
        new = [Rollup(at=at, seconds=HOUR, **_build_fields(key), counts=tally) for (at, key), tally in sums.items()]
        _query_rows().bulk_create(new, batch_size=BATCH)
    return len(minutes)


class Overtaken(Exception):
    """Another process has merged some of the same minutes; nothing was written."""


def forget_hours(before: datetime) -> int:
    """Delete up to BATCH hours before this instant; return how many."""
    old = _query_rows().filter(seconds=HOUR, at__lt=before).order_by("at").values_list("pk", flat=True)[:BATCH]
    return _query_rows().filter(pk__in=list(old)).delete()[0]


def read_rollups(since: datetime, until: datetime) -> Iterator[tuple[datetime, int, Key, Tally]]:
    """Yield (begin, MINUTE or HOUR, key, counts) of the rows that begin in [since, until), unordered."""
    rows = _query_rows().filter(seconds__in=(MINUTE, HOUR), at__gte=since, at__lt=until)
    for at, seconds, kind, queue, task, tally in rows.values_list("at", "seconds", "kind", "queue", "task", "counts"):
        yield at, seconds, (kind, queue, task), tally


def _query_rows() -> "QuerySet[Rollup]":
    return Rollup._base_manager.using(get_database())


def _build_fields(key: Key) -> dict[str, str]:
    return dict(zip(("kind", "queue", "task"), key, strict=True))
