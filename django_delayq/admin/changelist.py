"""What Redis says of schedules and of the whole thing, for a list and for a form: asked once a page."""

from dataclasses import replace
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.utils.translation import gettext as _

from .. import conf, mirror, status
from ..exceptions import BrokerError
from ..models import Schedule
from .glance import Redis


def ask_redis(schedules: list[Schedule]) -> Redis:
    """Return what Redis holds of these schedules, in one round trip, or that it does not answer."""
    if not conf.get_config().mirror or not schedules:
        return Redis()
    try:
        return Redis(mirror.read_entries(schedules))
    except BrokerError as error:
        return Redis(error=str(error))


def ask_health(*, details: bool) -> dict[str, Any] | None:
    """Return how it stands, None where the project does not mirror. Costs little more than one round trip to Redis.

    `known` is False where Redis does not answer; there are no numbers then. Without `details` it is not told why it
    does not: the reason says where Redis is.
    """
    if not conf.get_config().mirror:
        return None
    snapshot = status.look_quickly()
    problems = status.judge(snapshot)
    if not details:
        hidden = _("Redis does not answer.")
        problems = [replace(each, message=hidden) if each.code == "redis_unreachable" else each for each in problems]
    redis, compared = snapshot.redis, snapshot.comparison
    if redis is None:
        return {"problems": problems, "known": False}
    return {
        "problems": problems,
        "known": True,
        "drift": compared.drift.total if compared is not None and compared.drift is not None else None,
        "workers": sum(worker.live for worker in redis.workers),
        "entries": sum(shard.members for shard in redis.shards),
        "due": sum(shard.due for shard in redis.shards),
        "running": redis.leased,
    }


class ScheduleChangeList(ChangeList):
    """A page of schedules. `redis` holds what Redis said of them, `health` how the whole thing stands.

    `details`: whether it is shown why Redis does not answer, and where it is.
    """

    redis = Redis()
    details = False
    health: dict[str, Any] | None = None

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
