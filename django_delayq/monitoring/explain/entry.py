"""Describes what Redis holds of one member: not mirrored, waiting, due or leased. Changes nothing."""

from collections.abc import Iterator
from datetime import datetime, tzinfo

from django.utils.translation import gettext as _

from ... import conf
from ...exceptions import BrokerError
from ...index import EntryView, web
from ...recurrence.point import known_ms
from ..problems import simplify
from ..snapshot import take_snapshot
from .outcome import shown

#: Problems that keep due entries waiting.
OF_QUEUES = ("no_worker", "overdue", "redis_unfit")


class Entry:
    """The current entry of a schedule, an ordered run or a job. Its texts are without the address of Redis."""

    def __init__(self, member: str, queue: str) -> None:
        self.queue = queue
        #: The entry; None if Redis was not queried or did not answer. `silence` has the reason.
        self.view: EntryView | None = None
        self.silence = ""
        if not conf.get_config().mirror:
            why = {"why": _(conf.why_no_redis())}
            self.silence = _("%(why)s: nothing reaches Redis, so nothing runs.") % why
            return
        try:
            self.view = web.ask(lambda broker: broker.views([(member, queue)]))[0]
        except BrokerError:
            self.silence = _("Redis does not answer; whether a worker holds the lease is not known.")

    @property
    def leased(self) -> bool:
        return self.view is not None and self.view.leased

    @property
    def point(self) -> datetime | None:
        return None if self.view is None else known_ms(self.view.point_ms)

    def describe(
        self, generation: int, now: datetime, zone: tzinfo, *, waits: str = "", worker: str = ""
    ) -> Iterator[str]:
        """Describe the entry; `waits` is the text of pauses, `worker` the worker that began it, if known.

        If it is due and no worker has claimed it, what is wrong with its queue follows, as on all pages.
        """
        if self.view is None:
            yield self.silence
            return
        score = known_ms(self.view.score_ms)
        if score is None or self.view.point_ms is None:
            yield _("Redis does not hold it yet. A worker's sweep puts it there, or manage.py delayq_sync.")
            return
        point = self.point or score
        since = score if self.view.score_ms else point  # score 0: its turn has come, at a time that is not known
        values = {"point": shown(point, zone), "score": shown(since, zone), "worker": worker}
        if self.view.leased and worker:
            text = _("Worker %(worker)s holds the lease on %(point)s until %(score)s, or renews it.")
        elif self.view.leased:
            text = _(
                "A worker holds the lease on %(point)s until %(score)s, or renews it; its name comes with the outcome."
            )
        elif self.view.generation != generation:
            text = _("Redis has not seen the last edit yet. A worker's sweep tells it, or manage.py delayq_sync.")
        elif score <= now and not waits:
            yield from self._describe_due(values)
            return
        elif score <= now:
            text = _("In Redis %(point)s has been due since %(score)s.")
        elif score > point:
            text = _("In Redis %(point)s waits until %(score)s: for its jitter, or for its next attempt.")
        else:
            text = _("In Redis it waits for %(point)s.")
        yield text % values

    def _describe_due(self, values: dict[str, str]) -> Iterator[str]:
        snapshot = take_snapshot(briefly=True)
        queues = snapshot.redis.queues if snapshot.redis is not None else ()
        due = sum(each.due for each in queues if each.queue == self.queue)
        text = _(
            "In Redis %(point)s has been due since %(score)s, as one of %(due)s in queue %(queue)s, and no worker "
            "has claimed it. Does a worker run for this queue?"
        )
        yield text % {**values, "due": str(due), "queue": self.queue}
        for problem in simplify(snapshot.problems, snapshot.redis, details=False):
            if problem.queue in ("", self.queue) and problem.code in OF_QUEUES:
                yield problem.message
