"""Groups of failures that somebody has seen: hidden until they fail again. Changes no run."""

from datetime import datetime

from .. import ledger
from ..fields import utcnow
from ..models import Dismissal
from .runs import KEPT


def dismiss(digest: str, until: datetime, by: str = "") -> Dismissal:
    """Hide a group as far as it was seen: whatever of it fails after `until` shows it again.

    What is older than any failure that is read is forgotten here: so the table stays small.
    """
    rows = Dismissal.objects.using(ledger.database())
    rows.filter(until__lt=utcnow() - 2 * KEPT).delete()
    return rows.update_or_create(digest=digest, defaults={"until": until, "by": by[:200]})[0]


def take_back(digest: str) -> Dismissal | None:
    """Show a group again; return what hid it, None where nothing did."""
    row = Dismissal.objects.using(ledger.database()).filter(digest=digest).first()
    if row is not None:
        key = row.pk
        row.delete()
        row.pk = key  # for whoever notes what became of it
    return row


def read_dismissals() -> dict[str, Dismissal]:
    """Return what was dismissed, by the digests of the groups."""
    return {row.digest: row for row in Dismissal.objects.using(ledger.database())}
