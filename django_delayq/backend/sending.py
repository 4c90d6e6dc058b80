"""From this process into Redis: which shard, and again where a reply was lost. Or into memory. Knows no task.

Note [Sent twice]
A job whose enqueueing got no reply may be in Redis, or not. It is sent once more under the same name: where it is
there, or was there and its result stands, nothing is added. If that fails too, the caller is told, and cannot know.

Note [The shards that stand]
A job's shard follows from its name and the number of shards. While that number changes, settings differ between
processes; what stands in Redis counts. It is read at first, and whenever a shard has another epoch than the one that
this process knows: after a flush, or where the number of shards changes.
"""

import threading
from collections.abc import Sequence

from django.core.signals import setting_changed

from .. import conf, mirror
from ..broker import Broker, JobBroker, JobView, NewJob, Shard, in_parts
from ..exceptions import BrokerUnavailable
from ..grouping import grouped
from .memory import jobs_in_memory

#: Whoever enqueues waits at most so long for Redis, twice.
TIMEOUT_SECONDS = 2.0
#: So often the shards may change under one call before it is given up.
MOST_ROUNDS = 5


class Sender:
    """Safe to share between threads. Opens no connection before it is used."""

    def __init__(self, jobs: JobBroker | None = None) -> None:
        self._lock = threading.Lock()
        self._jobs = jobs
        self._epochs: dict[Shard, str] = {}
        self._counts: dict[str, int] = {}

    @property
    def jobs(self) -> JobBroker:
        """The jobs of this project's prefix."""
        with self._lock:
            if self._jobs is None:
                self._jobs = JobBroker(Broker(timeout_seconds=TIMEOUT_SECONDS))
            return self._jobs

    def forget(self) -> None:
        """Connect anew at the next use, and read anew how many shards there are."""
        with self._lock:
            if self._jobs is not None:
                self._jobs.broker.close()
            self._jobs, self._epochs, self._counts = None, {}, {}

    def send(self, items: Sequence[tuple[str, NewJob]]) -> list[str]:
        """Add (queue, job) each; return per job '' or the member that stands for it already.

        Raises:
            BrokerUnavailable: Redis does not answer. Some may have been added.
            ForeignLayout: The prefix belongs to another database; nothing was added.
        """
        sent, left, standing = self.jobs, list(items), dict[str, str]()
        for _ in range(MOST_ROUNDS):
            groups = grouped(left, lambda item: sent.shard_of(item[1].member, item[0], self._counts))
            parts = in_parts({shard: [job for _, job in group] for shard, group in groups.items()})
            try:
                replies = sent.enqueue_each(parts, self._epochs, again=False)
            except BrokerUnavailable:  # see Note [Sent twice]
                replies = sent.enqueue_each(parts, self._epochs, again=True)
            left = []
            for (shard, jobs), (epoch, names) in zip(parts, replies, strict=True):
                if names is None:  # see Note [The shards that stand]
                    self._epochs[shard] = epoch
                    self._counts = mirror.standing_shards(sent.broker)
                    left += [(shard.queue, job) for job in jobs]
                elif any(names):
                    standing.update((job.member, name) for job, name in zip(jobs, names, strict=True) if name)
            if not left:
                return [standing.get(job.member, "") for _, job in items]
        raise BrokerUnavailable(
            "The shards in Redis change all the time, so that nothing can be added. Try again later."
        )

    # -- one job that is there

    def view(self, queue: str, member: str) -> tuple[Shard, JobView]:
        """Read one job; where it is not found, also by the numbers of shards that stand in Redis now.

        Raises:
            BrokerError: Redis does not answer, or with an error.
        """
        jobs = self.jobs
        shard = jobs.shard_of(member, queue, self._counts)
        view = jobs.view(shard, member)
        if not (view.payload or view.result):
            self._counts = mirror.standing_shards(jobs.broker)
            if (standing := jobs.shard_of(member, queue, self._counts)) != shard:
                return standing, jobs.view(standing, member)
        return shard, view


_shared = Sender()


def shared() -> Sender:
    """Return this process' sender: into memory, where Redis is sent nothing."""
    return _shared if conf.get_config().mirror else Sender(jobs_in_memory())


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in ("DELAYQ", "CACHES"):
        _shared.forget()


setting_changed.connect(_forget, dispatch_uid="django_delayq.backend")
