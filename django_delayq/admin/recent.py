"""The newest runs of the schedules on a page, as a row of dots each: in one question, by steps of an index."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from django.db import connections
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import ledger
from ..models import Run, Status
from .display import tone_of

#: So many of each are shown.
MOST_SHOWN = 20
#: Of so many schedules at once: SQLite joins no more than 500 questions.
AT_ONCE = 200
DOT, HIGH = 6, 14


def recent(schedules: Sequence[int]) -> dict[int, list[str]]:
    """Return the outcomes of the newest runs of each of these schedules, the oldest first."""
    using, found = ledger.database(), dict[int, list[str]]()
    table = connections[using].ops.quote_name(Run._meta.db_table)
    one = (
        f"SELECT * FROM (SELECT schedule_id, status FROM {table} WHERE schedule_id = %s "  # noqa: S608 - ours
        f"ORDER BY due_at DESC LIMIT {MOST_SHOWN}) AS newest"
    )
    for at in range(0, len(schedules), AT_ONCE):
        part = schedules[at : at + AT_ONCE]
        with connections[using].cursor() as cursor:
            cursor.execute(" UNION ALL ".join([one] * len(part)), list(part))
            for pk, status in cursor.fetchall():
                found.setdefault(pk, []).insert(0, status)
    return found


@lru_cache(maxsize=500)
def _bar(status: str, at: int) -> SafeString:
    """Return one of them; a page of a hundred schedules has two thousand, of few kinds."""
    tone = tone_of(status)
    values = tone, at * DOT, 0 if tone == "bad" else HIGH // 3, DOT - 2, HIGH
    return format_html('<rect class="delayq-fill-{}" x="{}" y="{}" width="{}" height="{}"/>', *values)


def dots(statuses: Sequence[str]) -> SafeString:
    """Return a picture of these outcomes, the newest at the right; what it shows stands in its title."""
    if not statuses:
        return SafeString()
    counts = Counter(statuses)
    told = ", ".join(f"{count} {Status(name).label}" for name, count in counts.most_common() if name in Status.values)
    title = _("The last %(count)d runs: %(told)s") % {"count": len(statuses), "told": told}
    bars = SafeString("".join(_bar(status, at) for at, status in enumerate(statuses)))
    width = MOST_SHOWN * DOT
    picture = (
        '<svg class="delayq-recent" viewBox="0 0 {} {}" width="{}" height="{}" role="img"><title>{}</title>{}</svg>'
    )
    return format_html(picture, width, HIGH, width, HIGH, title, bars)
