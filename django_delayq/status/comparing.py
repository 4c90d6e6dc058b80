"""Redis against the database: whose prefix it is, how far they differ, which edits wait for too long."""

from datetime import timedelta

from .. import chain, ledger, mirror
from ..broker import Broker
from ..exceptions import ForeignLayout
from ..fields import utcnow
from ..models import Schedule, Tombstone
from .snapshot import Comparison

#: A worker mirrors within about 2 s what a request could not. What is older than this, nobody has mirrored.
STALE = timedelta(seconds=30)
#: So many of the oldest deletions and moves are looked at one by one.
MOST_STONES = 200


def compare(broker: Broker) -> Comparison:
    """Compare by counts; looks at no single entry but those that were moved or deleted.

    Raises:
        BrokerError: Redis does not answer, or with an error.
        DatabaseError: The database does not answer, or refused the question.
    """
    layout = broker.layout()
    try:
        mirror.check_layout(broker, claim=False)
    except ForeignLayout as error:
        return Comparison("foreign", str(error))
    moving = tuple(queue for queue in mirror.moving(layout) if queue in broker.config.queues)
    return Comparison(
        "none" if layout is None else "ours",
        drift=mirror.drift(broker),
        stale_edits=_stale_edits(broker),
        moving=moving,
        under_way=bool(moving) and mirror.under_way(broker),
    )


def _stale_edits(broker: Broker) -> int:
    """Count old edits that Redis has not followed. A member that is leased leaves its old place only afterwards."""
    using, before = ledger.database(), utcnow() - STALE
    stones = list(Tombstone._base_manager.using(using).filter(created_at__lt=before).order_by("pk")[:MOST_STONES])
    views = broker.views([(stone.member, stone.queue) for stone in stones])
    leaving = [item[1] for stone in stones if (item := chain.parse_member(stone.member)) is not None]
    edits = Schedule.objects.using(using).unmirrored().filter(updated_at__lt=before).exclude(pk__in=leaving)
    return edits.count() + sum(not view.leased for view in views)
