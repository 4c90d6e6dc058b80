"""What the lists show: Redis' view of a whole page in one round trip, and a count that never scans a ledger."""

from functools import cached_property
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest

from .. import conf, mirror
from ..exceptions import BrokerError
from ..models import Schedule
from .glance import Redis
from .health import Health, ask_health

#: A person does not page further than this; filters do.
MOST_COUNTED = 10_000


def ask_redis(schedules: list[Schedule]) -> Redis:
    """Return what Redis holds of these schedules, in one round trip, or that it does not answer."""
    if not conf.get_config().mirror or not schedules:
        return Redis()
    try:
        return Redis(mirror.read_entries(schedules))
    except BrokerError as error:
        return Redis(error=str(error))


class ScheduleChangeList(ChangeList):
    """A page of schedules. `redis` holds what Redis said of them, `health` how the whole thing stands.

    `details`: whether it is shown why Redis does not answer, and where it is.
    """

    redis = Redis()
    details = False
    health: Health | None = None

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then ask Redis about all of its rows at once. A POST shows nothing and asks nothing."""
        super().get_results(request)
        if request.method != "POST":
            rows = list(self.result_list)
            self.redis = ask_redis(rows)
            for row in rows:
                row.redis = self.redis
            self.result_list = rows
            self.details = self.model_admin.has_change_permission(request)
            self.health = ask_health(details=self.details)


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts at most `MOST_COUNTED` rows: an exact count of a large ledger takes longer than the page."""

    @cached_property
    def count(self) -> int:
        """The number of rows that can be paged through."""
        rows: Any = self.object_list
        return int(rows.order_by()[:MOST_COUNTED].count())

    @property
    def is_capped(self) -> bool:
        """True where there are more rows, or exactly as many."""
        return self.count >= MOST_COUNTED
