"""Who enqueues, cancels, moves and retries jobs in a history, and what was promised to them.

What is promised is noted at the commit, before anything else follows it: `Stage` lets the writes of the ledger tell.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import connection, transaction

from django_delayq import sync
from django_delayq.calls import parse_id
from django_delayq.calls.compat import TaskResultDoesNotExist, task_backends
from django_delayq.calls.registry import get_task
from django_delayq.exceptions import BrokerError, JobHeld, KeyTaken
from django_delayq.models import Run
from django_delayq.recurrence import to_ms
from django_delayq.recurrence.point import to_micros
from django_delayq.sync.layout import ForeignLayout

from .clock import BEGIN_MS
from .faults import Broken, Killed, step
from .stage import CALLBACK, FAILURE_TTL, TASK
from .view import read_shards


class RolledBack(Exception):
    """What ends a transaction whose work is thrown away."""


@dataclass
class Wanted:
    """A job that somebody wants done."""

    id: str
    alias: str
    queue: str
    attempts: int = 1
    unique: str | None = None
    #: Whether its key is held until it has ended.
    until_end: bool = False
    #: Whether it has a callback for each end.
    calls: bool = False
    #: The job whose callback it is.
    parent: str = ""
    #: The server's ms before which it must not start.
    after_ms: int = 0
    #: How often it was begun, of the attempts that it has now.
    begun: int = 0
    #: Whether it has given its key up.
    keyless: bool = False
    cancelled: bool = False
    #: What its outcome says, and after how many ms of the history it ended.
    outcome: str | None = None
    ended_ms: int = 0
    #: How many outcomes workers have recorded, of all its retries.
    ends: int = 0
    #: What Redis is to call its row; the leases under which it was begun since it was retried.
    generation: int = 0
    fences: set[str] = field(default_factory=set)

    @property
    def pk(self):
        """The key of its row."""
        return parse_id(self.id)[0]

    @property
    def member(self):
        """Its name in Redis."""
        return f"j{self.pk}"

    @property
    def holds(self):
        """Whether it has a unique key now."""
        return self.unique is not None and not self.keyless and self.outcome is None


class Callers:
    """A part of `World`."""

    def begin_calling(self):
        """Begin without jobs."""
        #: By the ids of their results.
        self.wanted = {}
        #: What the transaction that is open has enqueued: the row, the one that stands for it, what was said of it.
        self.pending = []
        #: Rows of transactions that are open elsewhere: the columns, the values, and what was enqueued there.
        self.elsewhere = []
        self._said = {}

    # -- steps

    @step
    def enqueue(self, alias="default", queue="default", ahead=0, many=1, how="alone", **said):
        """Enqueue some jobs alike, which start `ahead` seconds from now at the earliest.

        `how`: `alone`; in a transaction (`atomic`), one of two savepoints of which is rolled back (`savepoint`); one
        that is rolled back (`undone`); one that is still open elsewhere (`open`), until `commit`.
        """
        with self._calling():
            task = self._task(alias, queue, ahead, **said)
            calls = [((), {})] * many
            if how == "alone":
                task.enqueue_many(calls) if many > 1 else task.enqueue()
                return
            try:
                with transaction.atomic():
                    transaction.on_commit(self._note_pending)
                    task.enqueue_many(calls)
                    if how == "savepoint":
                        self._roll_back_savepoint(task)
                    if how in ("undone", "open"):
                        raise RolledBack
            except RolledBack:
                if how == "open":
                    self.elsewhere.append((self._rows_taken_away, list(self.pending)))
                    self.backup.skip_keys(max(row.pk for row, _, _ in self.pending))
            self.pending.clear()

    def _task(self, alias, queue, ahead, priority=0, unique=None, until="start", attempts=1, calls=False):
        after_ms = self.clock.server_ms() + ahead * 1000 if ahead else 0
        self._said = {"attempts": attempts, "unique": unique, "until_end": until == "end", "calls": calls}
        self._said["after_ms"] = after_ms
        callbacks = {"on_success": CALLBACK, "on_failure": CALLBACK} if calls else {}
        options = {"backend": alias, "queue_name": queue, "priority": priority, "max_attempts": attempts}
        after = self._soon(ahead) if ahead else None
        return get_task(TASK).using(
            run_after=after, backoff=5, unique_key=unique, unique_until=until, **options, **callbacks
        )

    def _roll_back_savepoint(self, task):
        kept = len(self.pending)
        try:
            with transaction.atomic():
                task.enqueue_many([((), {})] * 2)
                raise RolledBack
        except RolledBack:
            del self.pending[kept:]
        with transaction.atomic():
            task.enqueue()

    @step
    def commit(self, index=0, *, dies=False):
        """Commit a transaction that is open elsewhere; its process `dies` before it tells Redis."""
        if not self.elsewhere:
            return
        (columns, rows), pending = self.elsewhere.pop(index % len(self.elsewhere))
        marks = ", ".join(["%s"] * len(columns))
        with self._calling(), connection.cursor() as cursor:
            sql = f'INSERT INTO "{Run._meta.db_table}" ({", ".join(columns)}) VALUES ({marks})'  # noqa: S608
            cursor.executemany(sql, rows)
            self.pending = pending
            self._note_pending()
            if not dies:
                sync.put_now([row for row, _, _ in pending])

    @step
    def cancel(self, index=0):
        """Cancel a job."""
        self._ask(index, lambda backend, item: backend.cancel(item.id))

    @step
    def reschedule(self, index=0, ahead=0):
        """Move a job."""
        self._ask(index, lambda backend, item: backend.reschedule(item.id, timedelta(seconds=ahead)))

    @step
    def retry(self, index=0):
        """Let a job that has failed wait again."""
        item = self._ask(index, lambda backend, item: backend.retry(item.id), failed=True)
        if item is not None and item.outcome is None:
            known = self._generations(item.member)
            if not known or (self.delayed and item.generation not in known):
                self.unseen = True  # Redis could not be told, and only a full sweep looks at rows that are not new

    def _ask(self, index, order, *, failed=False):
        items = [item for item in self.wanted.values() if not failed or item.outcome in ("failed", "lost")]
        if not items:
            return None
        item = items[index % len(items)]
        with self._calling():
            try:
                order(task_backends[item.alias], item)
            except KeyTaken:
                others = [other for other in self.wanted.values() if other.unique == item.unique and other.holds]
                if not others:
                    raise Broken("J a free unique key is said to be taken", item) from None
            except (BrokerError, ForeignLayout, JobHeld):
                pass
            except TaskResultDoesNotExist:
                if item.outcome is None:
                    raise Broken("J a job that is wanted is said not to exist", item) from None
        return item

    @contextmanager
    def _calling(self):
        """Act as a web process, which may be killed."""
        self.delayed = self.delayed or self.plan is not None  # a failure closes the way to Redis for all its edits
        with self.as_actor("web"):
            try:
                yield
            except Killed:
                self.stage.seen["killed after a commit"] += 1

    def _generations(self, member):
        return {shard.gen.get(member) for shard in read_shards(self).values() if member in shard.due}

    # -- told by the writes themselves, see `Stage`

    def added(self, rows, standing):
        """Jobs were inserted, or others stand for them."""
        self.pending += [(row, stands, self._said) for row, stands in zip(rows, standing, strict=True)]
        if not connection.in_atomic_block:
            self._note_pending()
            return
        own = [row.pk for row, stands in zip(rows, standing, strict=True) if row is stands]
        with connection.cursor() as cursor:
            marks = ", ".join(["%s"] * len(own)) or "0"
            cursor.execute(f'SELECT * FROM "{Run._meta.db_table}" WHERE id IN ({marks})', own)  # noqa: S608
            self._rows_taken_away = [column[0] for column in cursor.description], cursor.fetchall()

    def _note_pending(self):
        pending, self.pending = self.pending, []
        for row, stands, said in pending:
            self._note(row, stands, said)

    def _note(self, row, stands, said):
        key, fresh = stands.result_id, row is stands
        holders = [item for item in self.wanted.values() if item.unique == said["unique"] and item.holds]
        if said["unique"] is None or not holders:
            if not fresh or key in self.wanted:
                raise Broken("J one job stands for another one", key, said)
            self.wanted[key] = Wanted(key, row.backend, row.queue, generation=to_micros(row.created_at), **said)
        elif fresh or [item.id for item in holders] != [key]:
            raise Broken("J two jobs have one unique key", key, holders)

    def cancelled(self, job):
        """A job was cancelled."""
        item = self._to_change(job)
        item.cancelled, item.outcome, item.ended_ms = True, "failed", self.clock.elapsed_ms
        self.stage.seen["job cancelled"] += 1

    def moved_to(self, job, due_at):
        """A job is to start at another time."""
        self._to_change(job).after_ms = to_ms(due_at)
        self.stage.seen["job moved"] += 1

    def _to_change(self, job):
        item = self.wanted[job.result_id]
        if item.outcome is not None:
            raise Broken("J a job that has ended was cancelled or moved", item)
        for stepped in self.workers:
            for held in (*stepped.slots.entries, *stepped.slots.begun):
                mine = held.member == item.member and held.outcome.run.token == job.token
                if mine and not stepped.lapsed(held) and stepped.claimed_since_loss(self.tag(held.shard), held.fence):
                    raise Broken("J a job that a worker has was cancelled or moved", item, stepped.name)
        self.holders.not_before.pop((self.tag_of(item.member, item.queue), item.member), None)
        return item

    def retried(self, job):
        """A job that has failed waits again."""
        item = self.wanted[job.result_id]
        if item.outcome not in ("failed", "lost"):
            raise Broken("J a job that has not failed was retried", item)
        self.invariants.final.pop(item.pk, None)
        item.outcome, item.cancelled, item.keyless, item.begun, item.after_ms = None, False, False, 0, 0
        item.fences.clear()
        item.generation += 1
        self.invariants.forget(self.key_of(job))
        self.stage.seen["job retried"] += 1

    def ended(self, run):
        """A worker has recorded the outcome of a job."""
        status = str(run.status)
        item = self.wanted.get(run.result_id)
        if item is None:
            raise Broken("J an outcome of a job that nobody wants", run.result_id)
        if item.outcome is not None:
            raise Broken("J two outcomes of one job", item, status)
        if status != "lost" and run.fence not in item.fences:
            raise Broken("J the outcome of an execution from before its retry", item, run.fence)
        if status == "failed" and item.begun < item.attempts:
            raise Broken("J failed before all its attempts were made", item)
        item.outcome, item.ended_ms = status, to_ms(run.finished_at) - BEGIN_MS
        item.ends += 1
        self.stage.seen["job ended"] += 1

    def may_be_gone(self, item):
        """Say whether the row of a job may be deleted by now: it has ended, and was kept for as long as was said."""
        if item.outcome is None or item.alias != "brief":
            return False
        kept = 0 if item.cancelled or item.outcome == "succeeded" else FAILURE_TTL
        return self.clock.elapsed_ms >= item.ended_ms + kept * 1000 or bool(self.clock.skews_ms)
