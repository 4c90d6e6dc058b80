"""How the whole thing stands, in a line above the list and beside a schedule. Asks `status`; judges nothing."""

from dataclasses import dataclass, replace
from typing import Self

from django.utils.translation import gettext as _

from .. import conf, status
from ..status import Problem, Snapshot


@dataclass(frozen=True, slots=True)
class Health:
    """What a page shows. `known` is False where Redis does not answer; the numbers are 0 then."""

    problems: tuple[Problem, ...]
    known: bool
    drift: int | None
    workers: int
    entries: int
    due: int
    running: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Return what was seen, in short."""
        redis, compared = snapshot.redis, snapshot.comparison
        drift = compared.drift if compared is not None else None
        shards = redis.shards if redis is not None else ()
        return cls(
            problems=tuple(status.judge(snapshot)),
            known=redis is not None,
            drift=drift.total if drift is not None else None,
            workers=sum(worker.live for worker in redis.workers) if redis is not None else 0,
            entries=sum(shard.members for shard in shards),
            due=sum(shard.due for shard in shards),
            running=sum(shard.leased for shard in shards),
        )

    def concerning(self, queue: str) -> list[Problem]:
        """Return the problems that keep a schedule of this queue from running."""
        return [problem for problem in self.problems if problem.queue in ("", queue)]


def ask_health(*, details: bool) -> Health | None:
    """Return how it stands, None where the project does not mirror. Costs little more than one round trip to Redis.

    Without `details` it is not told why Redis does not answer: the reason says where Redis is.
    """
    if not conf.get_config().mirror:
        return None
    health = Health.of(status.look_quickly())
    return health if details else replace(health, problems=tuple(map(_without_address, health.problems)))


def _without_address(problem: Problem) -> Problem:
    return replace(problem, message=_("Redis does not answer.")) if problem.code == "redis_unreachable" else problem
