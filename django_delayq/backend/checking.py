"""What of a backend's settings cannot work. Looks at settings only."""

from collections.abc import Iterable

from django.core import checks

from .. import conf
from ..jobs import MAX_QUEUE


def check_queues(alias: str, queues: Iterable[str]) -> list[checks.CheckMessage]:
    """Report the queues of an alias that no worker serves, or whose names are too long."""
    served = conf.get_config().queues
    unserved = [
        checks.Error(
            f"TASKS[{alias!r}] has the queue {queue!r}, which no worker serves.",
            hint=f"Add it to DELAYQ['QUEUES'] ({', '.join(served)}), or remove it here.",
            id="delayq.E021",
        )
        for queue in sorted(set(queues) - set(served))
    ]
    too_long = [
        checks.Error(
            f"TASKS[{alias!r}] has the queue {queue!r}, whose name is longer than {MAX_QUEUE} characters.",
            hint="The ids of results contain it, and Django keeps them below 64 characters. Take a shorter one.",
            id="delayq.E022",
        )
        for queue in sorted(queues)
        if len(queue) > MAX_QUEUE
    ]
    return [*unserved, *too_long]
