"""Who enqueues, cancels, moves and revives jobs in a history, and what was promised to them."""

from dataclasses import dataclass
from datetime import timedelta

from django_delayq.backend import operating, sending
from django_delayq.broker import web
from django_delayq.compat import TaskResultDoesNotExist, task_backends
from django_delayq.exceptions import BrokerError, JobHeld
from django_delayq.registry import get_task

from .faults import Broken, step
from .stage import TASK


@dataclass
class Wanted:
    """A job that somebody wants done."""

    id: str
    alias: str
    attempts: int
    unique: str | None
    #: The server's ms before which it must not start.
    after_ms: int
    #: How often it was begun; whether somebody was told that it is cancelled.
    begun: int = 0
    cancelled: bool = False
    #: What its outcome said when it was first seen, and how often Redis had lost something until then.
    outcome: str | None = None
    losses: int = 0
    revived: int = 0
    #: True while it is known from its execution only.
    guessed: bool = False

    @property
    def durable(self):
        """Whether its row is the truth."""
        return self.alias == "durable"

    @property
    def queue(self):
        """Its queue."""
        return self.id.rpartition(".")[0]

    @property
    def member(self):
        """Its name in Redis."""
        return "j" + self.id.rpartition(".")[2]


class Callers:
    """A part of `World`."""

    def begin_calling(self):
        """Begin without jobs."""
        #: By the ids of their results.
        self.wanted = {}
        #: Members that a worker has had, whatever it did with them. Until then a unique key is taken.
        self.taken = set()
        #: True once somebody enqueued without being told whether it worked, so that unknown jobs may be there.
        self.untold = False
        sending.shared().forget()

    def restore_wanted(self, wanted):
        """Go on with what a backup of the database knows; what Redis alone knows goes on as it is."""
        kept = {key: item for key, item in self.wanted.items() if not item.durable}
        self.wanted = kept | {key: item for key, item in wanted.items() if item.durable}

    # -- steps

    @step
    def enqueue(self, alias="default", queue="default", ahead=0, priority=0, unique=None, attempts=1, many=1):
        """Enqueue some jobs alike, which start `ahead` seconds from now at the earliest."""
        with self.as_actor("web"):
            options = {"backend": alias, "queue_name": queue, "priority": priority, "max_attempts": attempts}
            after = self._soon(ahead) if ahead else None
            after_ms = self.clock.server_ms() + ahead * 1000
            task = get_task(TASK).using(run_after=after, backoff=5, unique_key=unique, **options)
            if self.plan is not None and alias == "durable":  # then the fast path of everybody is closed for a while
                self.unseen = self.delayed = True
            before, self.untold = self.untold, True
            try:
                results = task.enqueue_many([((), {})] * many)
            except BrokerError:
                return
            self.untold = before
        for result in results:
            self._note(result.id, alias, attempts, unique, after_ms)

    def _note(self, key, alias, attempts, unique, after_ms):
        if key in self.wanted and self.wanted[key].guessed:  # it began before the reply was here
            self.wanted[key].guessed, self.wanted[key].unique = False, unique
            return
        kind = unique, alias == "durable", key.rpartition(".")[0]
        waiting = [item for item in self.wanted.values() if item.unique and self._waits(item)]
        same = [item for item in waiting if (item.unique, item.durable, item.queue) == kind]
        if key in self.wanted:
            if self.wanted[key].unique != unique or unique is None:
                raise Broken("J one job stands for another one", key, self.wanted[key])
            return
        if same and not (self.losses or self.restores or self.untold):
            raise Broken("J two jobs of one unique key wait", key, same)
        self.wanted[key] = Wanted(key, alias, attempts, unique, after_ms)

    def _waits(self, item):
        return not (item.member in self.taken or item.cancelled or item.outcome)

    @step
    def cancel(self, index=0):
        """Cancel a job."""
        item = self._chosen(index)
        if item is not None:
            done = self._ask(lambda: task_backends[item.alias].cancel(item.id))
            item.cancelled = item.cancelled or bool(done)
            self.stage.seen["job cancelled"] += bool(done)

    @step
    def reschedule(self, index=0, ahead=0):
        """Move a job."""
        item = self._chosen(index)
        if item is not None:
            item.after_ms = 0  # it starts at either of both, as far as is known until the reply is there
            after_ms = self.clock.server_ms() + ahead * 1000
            if self._ask(lambda: task_backends[item.alias].reschedule(item.id, timedelta(seconds=ahead))):
                item.after_ms = after_ms

    @step
    def revive(self, index=0):
        """Let a dead job start anew."""
        item = self._chosen(index)
        if item is not None:
            self.unseen = self.unseen or self.plan is not None
            self.delayed = self.delayed or self.plan is not None
            item.revived += 1
            item.outcome, item.begun = None, 0
            told = self._ask(lambda: web.ask(lambda broker: operating.revive(broker, item.id)))
            item.outcome = None  # others may have looked meanwhile
            self.stage.seen["job revived"] += told == operating.Outcome.DONE

    def _chosen(self, index):
        return list(self.wanted.values())[index % len(self.wanted)] if self.wanted else None

    def _ask(self, order):
        with self.as_actor("web"):
            try:
                return order()
            except (BrokerError, JobHeld, TaskResultDoesNotExist):
                return None
