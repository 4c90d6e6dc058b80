"""Describes a schedule or a job as it is now: obstacles, its entry in Redis, the last run and the next points."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from functools import cached_property

from django.utils.translation import gettext as _

from ... import conf, ledger
from ...calls import handover, parse_id, registry
from ...calls.call import get_backend
from ...exceptions import BrokerError, InvalidRecurrence, UnknownTask
from ...index import EntryView, web
from ...ledger import chain
from ...ledger.rows import AnyRun
from ...models import Condition, Control, Definition, Origin, Run, Schedule, Status, explain_wait
from ...models.columns import from_json, get_values
from ...models.differences import SWITCH, list_differing
from ...recurrence.point import try_from_ms
from ...recurrence.words import describe
from ...recurrence.zone import get_zone
from ..observing import take_snapshot
from ..problems import simplify
from .outcome import describe_run, format_instant

#: Problems that keep due entries waiting.
OF_QUEUES = ("no_worker", "overdue", "redis_unfit")


class IndexEntry:
    """The current entry of a schedule, a requested run or a job. Its texts are without the address of Redis."""

    def __init__(self, member: str, queue: str) -> None:
        self.queue = queue
        #: The entry; None if Redis was not queried or did not answer. `silence` has the reason.
        self.view: EntryView | None = None
        self.silence = ""
        if not conf.get_config().mirror:
            why = {"why": _(conf.explain_no_redis())}
            self.silence = _("%(why)s: nothing is sent to Redis, so nothing runs.") % why
            return
        try:
            self.view = web.ask(lambda broker: broker.read_views([(member, queue)]))[0]
        except BrokerError:
            self.silence = _("Redis does not answer; whether a worker holds the lease is not known.")

    @property
    def leased(self) -> bool:
        return self.view is not None and self.view.leased

    @property
    def point(self) -> datetime | None:
        return None if self.view is None else try_from_ms(self.view.point_ms)

    def describe(
        self, generation: int, now: datetime, zone: tzinfo, *, waits: str = "", worker: str = ""
    ) -> Iterator[str]:
        """Describe the entry; if it waits for a worker, also what is wrong with its queue. `waits` has the pauses."""
        if self.view is None:
            yield self.silence
            return
        score = try_from_ms(self.view.score_ms)
        if score is None or self.view.point_ms is None:
            yield _(
                "It is not in Redis yet. A worker adds it within seconds; to add it now, run: manage.py delayq_sync"
            )
            return
        point = self.point or score
        since = score if self.view.score_ms else point  # score 0: its turn has come, at a time that is not known
        values = {"point": format_instant(point, zone), "score": format_instant(since, zone), "worker": worker}
        if self.view.leased and worker:
            text = _("Worker %(worker)s leases %(point)s until %(score)s, and renews the lease while it works.")
        elif self.view.leased:
            text = _(
                "A worker leases %(point)s until %(score)s, and renews the lease while it works. Its "
                "name comes with the outcome."
            )
        elif self.view.generation != generation:
            text = _(
                "The last edit is not in Redis yet. A worker adds it within seconds; to add it now, run: "
                "manage.py delayq_sync"
            )
        elif score <= now and not waits:
            yield from self._describe_due(values)
            return
        elif score <= now:
            text = _("In Redis, %(point)s has been due since %(score)s.")
        elif score > point:
            text = _("In Redis, %(point)s waits until %(score)s: for its jitter, or for its next attempt.")
        else:
            text = _("In Redis, it waits for %(point)s.")
        yield text % values

    def _describe_due(self, values: dict[str, str]) -> Iterator[str]:
        snapshot = take_snapshot(briefly=True)
        queues = snapshot.redis.queues if snapshot.redis is not None else ()
        due = sum(each.due for each in queues if each.queue == self.queue)
        text = _(
            "In Redis, %(point)s has been due since %(score)s, as one of %(due)s in queue %(queue)s, "
            "and no worker has claimed it. Check that a worker serves this queue."
        )
        yield text % {**values, "due": str(due), "queue": self.queue}
        for problem in simplify(snapshot.problems, snapshot.redis, details=False):
            if problem.queue in ("", self.queue) and problem.code in OF_QUEUES:
                yield problem.message


def describe_recurrence(schedule: Schedule) -> str:
    try:
        words = describe(schedule.recurrence)
    except InvalidRecurrence as error:
        return str(error)
    return words + (_(", from the end of the last run") if is_counted_from_finish(schedule) else "")


def is_counted_from_finish(schedule: Schedule) -> bool:
    return schedule.kind == Schedule.Kind.EVERY and schedule.every_from == Schedule.EveryFrom.FINISH


class Situation:
    """A schedule's current definition, ledger rows and entry in Redis, as sentences."""

    def __init__(self, schedule: Schedule, now: datetime) -> None:
        self.schedule, self.now = schedule, now
        self.zone = get_zone(schedule.timezone)
        self.state = chain.get_state(schedule)
        self.entry = IndexEntry(chain.format_member(schedule.pk), schedule.queue)

    @cached_property
    def open_rows(self) -> Sequence[AnyRun]:
        return ledger.load_open_rows([self.schedule.pk]).get(self.schedule.pk, [])

    @cached_property
    def held(self) -> Sequence[Control]:
        return ledger.load_controls()

    @cached_property
    def waits(self) -> str:
        return explain_wait(self.held, (self.schedule.queue, self.schedule.task))

    @property
    def goes_on(self) -> bool:
        """True if the schedule has a next point, so that Redis should hold it."""
        return self.schedule.enabled and self.state.condition == Condition.ACTIVE

    def fill_time(self, text: str, instant: datetime) -> str:
        """Fill the %(time)s of a text."""
        return text % {"time": format_instant(instant, self.zone)}

    def format_headline(self) -> str:
        return f"{self.schedule.name}: {describe_recurrence(self.schedule)}"

    def explain_obstacles(self) -> Iterator[str]:
        """Yield what keeps the schedule from starting a run, each with what to do."""
        schedule, reason = self.schedule, {"reason": _format_sentence(self.state.condition_reason)}
        if not schedule.enabled:
            user, why = _find_pauser(schedule), f" ({schedule.pause_reason})" if schedule.pause_reason else ""
            why += " " + _("by %(user)s") % {"user": user} if user else ""
            yield _("It is paused%(reason)s: no run starts until it is resumed.") % {"reason": why}
        if self.state.condition == Condition.BROKEN:
            yield _("It is broken: %(reason)s Edit the schedule.") % reason
        elif self.state.condition == Condition.FINISHED:
            yield _("It is finished: %(reason)s") % reason
        yield from explain_holds(schedule.queue, schedule.task, self.held)

    def explain_handover(self) -> Iterator[str]:
        """Yield what another TASKS backend does with its points."""
        schedule, task = self.schedule, registry.find_task(self.schedule.task)
        if schedule.backend and task is not None:
            refusal = handover.find_refusal(task, schedule.backend, schedule.priority)
            if refusal is None:
                text = _("It is handed over to the TASKS backend %(backend)s, whose workers run it.")
                yield text % {"backend": schedule.backend}
            else:
                yield _("Each run fails: %(reason)s") % {"reason": _format_sentence(str(refusal))}

    def explain_redis(self) -> Iterator[str]:
        """Yield what Redis does with the schedule, if Redis should hold it or a worker still has its lease."""
        if self.goes_on or self.entry.leased:
            yield from self.describe_entry()
            yield from explain_slowness(self.schedule.queue, self.held)

    def describe_entry(self) -> Iterator[str]:
        point = self.entry.point
        worker = next((row.worker for row in self.open_rows if row.due_at == point), "") if self.entry.leased else ""
        generation, waits = self.schedule.generation, self.waits
        return self.entry.describe(generation, self.now, self.zone, waits=waits, worker=worker)

    def describe(self, run: Run) -> list[str]:
        attempts, catch_up = self.schedule.max_attempts, self.schedule.max_catch_up
        return [*describe_run(run, self.zone, attempts=attempts, catch_up=catch_up), *self.explain_edit(run)]

    def explain_edit(self, run: Run) -> Iterator[str]:
        """Yield that the definition was edited after a run. Pausing and resuming are not edits."""
        schedule = self.schedule
        if run.generation == schedule.generation or run.status not in (Status.SUCCEEDED, Status.FAILED):
            return
        kept = Definition.objects.using(ledger.get_database()).find_generation(schedule.pk, run.generation)
        if kept is None:
            yield _("The schedule was changed since.")
        elif any(unit is not SWITCH for unit in list_differing(from_json(kept.values), get_values(schedule))):
            yield _("The definition has been edited since.")


def explain_holds(queue: str, task: str, held: Sequence[Control]) -> Iterator[str]:
    """Yield what keeps everything of a queue and a task from starting."""
    waits = explain_wait(held, (queue, task))
    if waits:
        yield waits
    if registry.find_task(task) is None:
        text = _(
            "task missing: does not run. No installed app has the @task function %(task)s; workers "
            "without it return the run."
        )
        yield text % {"task": task}


def explain_slowness(queue: str, held: Sequence[Control]) -> Iterator[str]:
    """Yield why few or no workers take due entries of a queue."""
    for row in held:
        if row.most is not None and (row.kind, row.name) == (Control.Target.QUEUE, queue):
            yield f"{row}: {row.restrictions}."
    if queue not in conf.get_config().queues:
        text = _("DELAYQ['QUEUES'] of this process has no queue %(queue)s; other workers may serve it.")
        yield text % {"queue": queue}


def _find_pauser(schedule: Schedule) -> str:
    """Return the user who paused a schedule; '' if that is not stored. See kept.py, Note [Edits keep definitions]."""
    following: Schedule | Definition = schedule
    for kept in Definition.objects.using(ledger.get_database()).filter(schedule=schedule.pk).order_by("-pk"):
        if not kept.is_followed_by(following):
            break
        if kept.values["enabled"]:
            return kept.by
        following = kept
    return ""


def explain_state(schedule: Schedule, now: datetime) -> list[str]:
    situation = Situation(schedule, now)
    lines = [
        situation.format_headline(),
        *situation.explain_obstacles(),
        *situation.explain_handover(),
        *situation.explain_redis(),
    ]
    point = None
    if situation.goes_on and registry.find_task(schedule.task) is not None:
        with suppress(InvalidRecurrence):
            point = chain.find_next_point(schedule, situation.state)
    if point is not None:
        lines.append(_("Next: %(point)s.") % {"point": format_instant(point, situation.zone)})
    rows = Run._base_manager.using(ledger.get_database()).filter(schedule_id=schedule.pk, due_at__lte=now)
    last = rows.order_by("-due_at").first()
    if last is None:
        return [*lines, _("It has no runs.")]
    return [*lines, _("Its newest run:"), *(f"  {line}" for line in situation.describe(last))]


def list_next(schedule: Schedule, count: int) -> list[str]:
    """Return the next due points, one in a line, with their annotations. Raises InvalidRecurrence."""
    zone = get_zone(schedule.timezone)
    lines = []
    for point in schedule.preview(count):
        notes = f"  {'; '.join(point.annotations)}" if point.annotations else ""
        lines.append(f"{format_instant(point.due_at, zone)}{notes}")
    if not schedule.enabled:
        lines.append(_("It is not enabled, so none of these will run."))
    elif registry.find_task(schedule.task) is None:
        lines.append(_("task missing: does not run"))
    return lines or [_("There is no further due time.")]


def _format_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def find_job(text: str) -> Run | None:
    """Return the job with a result id or a primary key; None if there is none."""
    parsed = parse_id(text)
    if parsed is not None:
        return ledger.find_job(*parsed)
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        return None
    return Run.objects.using(ledger.get_database()).filter(pk=int(text), origin=Origin.JOB).first()


def explain_job(job: Run, now: datetime) -> list[str]:
    """Explain why a job waits, where it runs, or how it ended."""
    zone = get_zone(conf.get_project_timezone())
    values = {"task": job.task, "pk": job.pk, "queue": job.queue, "backend": job.backend}
    values["time"] = format_instant(job.created_at, zone)
    lines = [
        _("%(task)s: job %(pk)d, enqueued at %(time)s in queue %(queue)s by the TASKS alias %(backend)s.") % values,
        *describe_run(job, zone, attempts=_get_most_attempts(job)),
    ]
    if not Status(job.status).is_open:
        if job.expires_at is not None:
            lines.append(_("Its row is kept until %(time)s.") % {"time": format_instant(job.expires_at, zone)})
        return lines
    entry, held = IndexEntry(chain.format_run_member(job), job.queue), ledger.load_controls()
    lines += _explain_progress(job, now, zone)
    lines += explain_holds(job.queue, job.task, held)
    waits = explain_wait(held, (job.queue, job.task))
    worker = job.worker if job.status == Status.RUNNING else ""
    lines += entry.describe(chain.get_run_generation(job), now, zone, waits=waits, worker=worker)
    lines += explain_slowness(job.queue, held)
    return lines


def _explain_progress(job: Run, now: datetime, zone: tzinfo) -> Iterator[str]:
    if job.status == Status.QUEUED and job.due_at > now:
        yield _("It starts at %(time)s at the earliest.") % {"time": format_instant(job.due_at, zone)}
    if job.status == Status.RUNNING and job.started_at is not None:
        yield _("It was started at %(time)s.") % {"time": format_instant(job.started_at, zone)}
    if job.backend not in handover.list_backends():
        yield _("TASKS of this process has no alias %(backend)s; other workers may run the job.") % {
            "backend": job.backend
        }
    if job.unique_key is not None and (job.options or {}).get("unique_until") == "end":
        yield _("It holds its unique key until it has ended: no other job with this key is enqueued.")
    elif job.unique_key is not None:
        yield _("It holds its unique key until it starts: no other job with this key is enqueued.")


def _get_most_attempts(job: Run) -> int:
    """Return the maximum number of attempts: from the job, else from its TASKS alias in this process."""
    most = (job.options or {}).get("max_attempts")
    with suppress(UnknownTask):
        most = most or get_backend(job.backend).settings.get_retries(job.task).max_attempts
    return int(most or 1)
