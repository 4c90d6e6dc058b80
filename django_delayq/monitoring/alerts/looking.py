"""Looks at what stands wrong, again and again, and has states follow it: the worker that does the upkeep, or a command.

Note [What is not known]
While Redis does not answer, or a shard is being rebuilt after a flush, there is nothing to tell of it: queues are
empty, no worker has said yet that it lives. Then the states that are judged by Redis stay as they are, those of a queue
as long as one of its shards is not built, the others as long as any is.
"""

from collections.abc import Callable
from datetime import timedelta

from ...recurrence.point import utcnow
from ..status import Snapshot, judge, look_quickly
from . import matters, states

#: These are judged whatever Redis is like.
BY_THE_DATABASE = frozenset((*matters.FINDERS, "failed_jobs"))
#: And these say what Redis is like.
OF_REDIS = frozenset(("redis_unreachable", "not_built", "damaged_keys"))


def look_now() -> Snapshot:
    """Look, and have every state follow what is seen; see `states.follow`. For looks at the same time no harm is done.

    Raises:
        DatabaseError: The database does not answer.
        ImproperlyConfigured: Nobody could be told; see `states.find_jobs`.
    """
    snapshot = look_quickly(server=True)
    known: dict[str, list[int]] = {}
    rows = states.standing()
    for kind, subject in rows:
        if kind in matters.FINDERS and subject:
            known.setdefault(kind, []).append(int(subject))
    found = [*matters.of_problems(judge(snapshot)), *matters.of_failed_jobs(), *matters.of_schedules(known)]
    is_known = _what_is_known(snapshot)
    now = utcnow()
    seen = {(each.kind, each.subject): each for each in reversed(found) if is_known(each.kind, each.queue)}
    states.follow(rows, seen, is_known, now)
    states.forget(now - timedelta(days=states.DAYS_KEPT))
    return snapshot


def _what_is_known(snapshot: Snapshot) -> Callable[[str, str], bool]:
    """See Note [What is not known]."""
    redis, compared = snapshot.redis, snapshot.comparison
    answers = redis is not None and compared is not None and not compared.foreign
    unbuilt = {shard.queue for shard in redis.shards if shard.epoch != "built"} if redis is not None else set()

    def is_known(kind: str, queue: str) -> bool:
        if kind in BY_THE_DATABASE or kind in OF_REDIS:
            return kind != "not_built" or redis is not None
        return answers and (queue not in unbuilt if queue else not unbuilt)

    return is_known
