"""The fields of a schedule, and their validation, which queries the database only for stored values."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.timezone import is_naive
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import conf
from ..calls import commands, handover, registry
from ..calls.annotations import find_misfits
from ..calls.call import find_first_alias
from ..calls.task_options import NAMES as CALLBACKS
from ..calls.validators import is_storable, validate_json
from ..conf.alerts import LONGEST, find_refusal
from ..exceptions import InvalidArguments, InvalidRecurrence, UnknownTask
from ..recurrence import Recurrence
from ..recurrence.phrases import offer
from ..recurrence.point import utcnow
from ..recurrence.policy import Recurring
from ..recurrence.zone import get_zone
from .columns import UTCDateTimeField, get_fields
from .primary import PrimaryModel
from .versions import now_generation

INSTANTS = ("at", "start_at", "end_at")
#: SQLite keeps durations as microseconds in 64 bits.
LONGEST_DURATION = timedelta(days=100_000_000)
#: Number of gaps between cron points that are compared with the minimum: more than an hour, at one each minute.
GAPS_COMPARED = 100
#: Maximum of `keep_last`: each pass of pruning counts that far.
MOST_KEPT = 100_000
VALUE_FIELD = {"cron": "cron", "every": "every", "once": "at"}

#: A model field, and an error message.
Problem = tuple[str, str]


def default_timezone() -> str:
    return conf.get_project_timezone()


def default_queue() -> str:
    return conf.get_config().queues[0]


class AbstractSchedule(Recurring, PrimaryModel):
    """The fields of a schedule, and what makes them valid."""

    class Kind(models.TextChoices):
        CRON = "cron", _("cron expression")
        EVERY = "every", _("interval")
        ONCE = "once", _("once")

    class EveryFrom(models.TextChoices):
        DUE = "due", _("fixed rate: from due time to due time")
        FINISH = "finish", _("fixed delay: from the end of the last run")

    class DstGap(models.TextChoices):
        RUN_AFTER = "run_after", _("run once, right after the gap")
        SKIP = "skip", _("skip")

    class DstOverlap(models.TextChoices):
        ONCE = "once", _("run once, the first time")
        TWICE = "twice", _("run both times")

    class Overlap(models.TextChoices):
        SKIP = "skip", _("skip due times during a run")
        QUEUE_ONE = "queue_one", _("run the newest afterwards")
        QUEUE_ALL = "queue_all", _("run all afterwards")
        ALLOW = "allow", _("run side by side")

    class Missed(models.TextChoices):
        LATEST = "latest", _("run only the latest")
        ALL = "all", _("run all, oldest first")
        SKIP = "skip", _("skip, wait for the next")

    class Keep(models.TextChoices):
        AS_SET = "", _("default of the settings")
        ALL = "all", _("all, forever")
        FAILURES = "failures", _("failed and lost runs")
        LAST = "last", _("only the newest runs")
        NONE = "none", _("only the newest run")

    name = models.CharField(_("name"), max_length=200, unique=True)
    description = models.TextField(_("description"), blank=True, default="")
    task = models.CharField(_("task"), max_length=255)
    args = models.JSONField(_("positional arguments"), default=list, blank=True)
    kwargs = models.JSONField(_("keyword arguments"), default=dict, blank=True)

    kind = models.CharField(_("kind"), max_length=8, choices=Kind)
    cron = models.CharField(_("cron expression"), max_length=255, blank=True, default="")
    every = models.DurationField(_("every"), null=True, blank=True)
    every_from = models.CharField(_("count the interval"), max_length=8, choices=EveryFrom, default=EveryFrom.DUE)
    at = UTCDateTimeField(_("at"), null=True, blank=True)
    timezone = models.CharField(_("time zone"), max_length=64, default=default_timezone)
    dst_gap = models.CharField(_("time that does not exist"), max_length=16, choices=DstGap, default=DstGap.RUN_AFTER)
    dst_overlap = models.CharField(
        _("time that comes twice"), max_length=16, choices=DstOverlap, default=DstOverlap.ONCE
    )
    start_at = UTCDateTimeField(_("not before"), null=True, blank=True)
    end_at = UTCDateTimeField(_("not after"), null=True, blank=True)
    max_runs = models.PositiveIntegerField(_("end after this many runs"), null=True, blank=True)
    jitter = models.DurationField(_("jitter"), default=timedelta(0))

    enabled = models.BooleanField(_("enabled"), default=True)
    pause_reason = models.CharField(_("reason for the pause"), max_length=200, blank=True, default="")
    queue = models.CharField(_("queue"), max_length=64, default=default_queue)
    priority = models.SmallIntegerField(_("priority"), default=0)
    backend = models.CharField(_("hand over to the TASKS backend"), max_length=64, blank=True, default="")

    overlap = models.CharField(_("due during a run"), max_length=16, choices=Overlap, default=Overlap.SKIP)
    missed = models.CharField(_("due without a worker"), max_length=16, choices=Missed, default=Missed.LATEST)
    grace = models.DurationField(_("grace"), null=True, blank=True)
    catch_up_window = models.DurationField(_("catch-up window"), null=True, blank=True)
    max_catch_up = models.PositiveIntegerField(_("catch up at most"), default=100)
    timeout = models.DurationField(_("timeout"), null=True, blank=True)
    max_attempts = models.PositiveSmallIntegerField(_("attempts"), default=1)
    backoff = models.DurationField(_("backoff"), default=timedelta(seconds=10))

    keep = models.CharField(_("runs to keep"), max_length=8, choices=Keep, blank=True, default="")
    keep_last = models.PositiveIntegerField(_("number of newest runs"), null=True, blank=True)
    on_success = models.CharField(_("task after a success"), max_length=255, blank=True, default="")
    on_failure = models.CharField(_("task after a failure"), max_length=255, blank=True, default="")

    expected_within = models.DurationField(_("expected to succeed within"), null=True, blank=True)
    ping_url = models.CharField(_("address to ping"), max_length=LONGEST, blank=True, default="")

    created_at = UTCDateTimeField(_("created"), default=utcnow, editable=False)
    updated_at = UTCDateTimeField(_("changed"), default=utcnow, editable=False)
    generation = models.BigIntegerField(default=now_generation, editable=False)
    synced_generation = models.BigIntegerField(default=0, editable=False)
    replaced_from = UTCDateTimeField(null=True, editable=False)
    effective_from = UTCDateTimeField(default=utcnow, editable=False)
    #: The key of `@periodic`; null if made by hand. Only syncs write this and the next column, by `update()`.
    declared_key = models.CharField(max_length=200, null=True, unique=True, editable=False)  # noqa: DJ001 - unique
    #: When a sync found the declaration missing in the code.
    declaration_gone_at = UTCDateTimeField(null=True, editable=False)

    #: The user who makes the next edit. `save()` stores it with the replaced definition, and clears it.
    changed_by = ""

    class Meta:
        abstract = True

    def clean(self) -> None:
        """Check the whole definition; raise a `ValidationError` with every mistake, by model field."""
        super().clean()
        _refuse(_check_types(self))
        kind = _check_kind(self)
        minimum = timedelta(seconds=conf.get_config().min_interval_seconds)
        timing = [] if kind else _check_values(self, minimum) or _check_points(self, minimum)
        others = (_check_execution, _check_watching, _check_call, _check_callbacks)
        _refuse([*kind, *timing, *(problem for find in others for problem in find(self))])

    def begin_version(self) -> None:
        """Make this row a definition that begins now."""
        now = utcnow()
        self.generation = max(int(self.generation), now_generation())
        self.replaced_from, self.effective_from = None, max(self.created_at, now)
        self.synced_generation = 0
        self.updated_at = now


def _refuse(problems: Sequence[Problem]) -> None:
    errors: dict[str, list[str]] = {}
    for field, message in problems:
        errors.setdefault(field, []).append(message)
    if errors:
        raise ValidationError(errors)


def _check_types(schedule: AbstractSchedule) -> list[Problem]:
    types = {"DurationField": timedelta, "DateTimeField": datetime}
    problems = []
    for name, field in get_fields(type(schedule)).items():
        value, wanted = getattr(schedule, name), types.get(field.get_internal_type())
        if value is None:
            if not field.null:
                problems.append((name, "This cannot be null."))
        elif wanted is not None and not isinstance(value, wanted):
            problems.append((name, f"This must be a {wanted.__name__}, not {type(value).__name__} {value!r}."))
        elif isinstance(value, timedelta) and abs(value) > LONGEST_DURATION:
            problems.append((name, f"This is longer than a database stores: at most {LONGEST_DURATION.days:,} days."))
        elif isinstance(value, str) and not is_storable(value):
            problems.append((name, "This has a NUL character or half of a surrogate pair, which no database stores."))
    return problems


def _check_kind(schedule: AbstractSchedule) -> list[Problem]:
    if schedule.kind not in VALUE_FIELD:
        return [("kind", f"The kind is one of cron, every and once, not {schedule.kind!r}.")]
    problems = []
    for kind, field in VALUE_FIELD.items():
        filled = getattr(schedule, field) not in (None, "")
        if kind == schedule.kind and not filled:
            problems.append((field, f"A schedule of kind {schedule.kind!r} needs this field."))
        elif kind != schedule.kind and filled:
            problems.append(
                (field, f"Leave this empty: the kind is {schedule.kind!r}. A schedule has exactly one recurrence.")
            )
    return problems


def _check_values(schedule: AbstractSchedule, minimum: timedelta) -> list[Problem]:
    naive = [name for name in INSTANTS if (value := getattr(schedule, name)) is not None and is_naive(value)]
    if naive:
        return [(name, "An instant must be aware: add the time zone, as in datetime(…, tzinfo=UTC).") for name in naive]
    if schedule.every is not None and schedule.every < minimum:
        seconds = schedule.every.total_seconds()
        return [("every", f"The interval is {seconds:g} s; it must be at least {minimum.total_seconds():g} s.")]
    if schedule.jitter < timedelta(0):
        return [("jitter", "Jitter is zero or more.")]
    if schedule.start_at and schedule.end_at and schedule.end_at < schedule.start_at:
        return [("end_at", "The end is before the start.")]
    return []


def _check_points(schedule: AbstractSchedule, minimum: timedelta) -> list[Problem]:
    try:
        rule = schedule.recurrence
        schedule.policies  # noqa: B018 - raises if a policy is unknown
    except InvalidRecurrence as error:
        return [(error.field, f"{error}{_offer(schedule.cron) if error.field == 'cron' else ''}")]
    if schedule.kind == schedule.Kind.ONCE:
        return _check_one_off(schedule)
    first = rule.next_after(max(schedule.created_at, schedule.start_at or schedule.created_at))
    if first is None:
        return [("end_at", "There is no due point between the start and the end.")]
    if schedule.kind == schedule.Kind.CRON and (gap := _find_short_gap(minimum, rule, first)) is not None:
        return [
            (
                "cron",
                f"Two due times differ by {gap.total_seconds():g} s; the minimum is {minimum.total_seconds():g} s.",
            )
        ]
    second = rule.next_after(first)
    if second is not None and schedule.jitter >= second - first:
        return [("jitter", f"Jitter must be shorter than the gap between two due points, here {second - first}.")]
    return []


def _offer(typed: str) -> str:
    found = offer(typed)
    if found is None:
        return ""
    every = found[0].removeprefix("@every ")
    if every != found[0]:
        return " " + gettext("This is an interval: choose that kind, and write %(every)s.") % {"every": every}
    return " " + gettext("Did you mean %(cron)s: %(words)s?") % {"cron": found[0], "words": found[1]}


def _find_short_gap(minimum: timedelta, rule: Recurrence, first: datetime) -> timedelta | None:
    """Return a gap between the first points that is below the minimum. A gap of a cron expression is at least 1 s."""
    if minimum <= timedelta(seconds=1):
        return None
    point = first
    for _number in range(GAPS_COMPARED):
        following = rule.next_after(point)
        if following is None:
            return None
        if following - point < minimum:
            return following - point
        point = following
    return None


def _is_stored(schedule: AbstractSchedule, *fields: str) -> bool:
    """Return whether these values are stored already: those of an existing schedule stay valid."""
    rows = type(schedule)._base_manager.filter(pk=schedule.pk).values_list(*fields)
    return schedule.pk is not None and rows.first() == tuple(getattr(schedule, name) for name in fields)


def _check_one_off(schedule: AbstractSchedule) -> list[Problem]:
    at = schedule.at
    if at is None or at > utcnow() or _is_stored(schedule, "at"):
        return []
    try:
        typed = at.astimezone(get_zone(schedule.timezone))  # the zone in which the user typed it
    except InvalidRecurrence as error:
        return [(error.field, str(error))]
    return [("at", f"{typed:%Y-%m-%d %H:%M:%S %Z} has passed. Choose a future time, or use Run now.")]


def _check_execution(schedule: AbstractSchedule) -> Iterator[Problem]:
    if schedule.timeout is not None and schedule.timeout <= timedelta(0):
        yield "timeout", "A timeout is longer than zero; leave it empty for none."
    queues = conf.get_config().queues
    if schedule.queue not in queues:
        yield "queue", f"No setting names the queue {schedule.queue!r}; DELAYQ['QUEUES'] has {', '.join(queues)}."
    keeps = schedule.Keep
    if schedule.keep not in keeps.values:
        yield "keep", f"This must be one of {', '.join(keeps.values[1:])}, or empty, not {schedule.keep!r}."
    elif schedule.keep != keeps.LAST and schedule.keep_last is not None:
        yield "keep_last", f"Leave this empty: it applies only if keep is {keeps.LAST.value!r}."
    elif schedule.keep == keeps.LAST and not 1 <= (schedule.keep_last or 0) <= MOST_KEPT:
        yield "keep_last", f"Set the number of newest runs to keep: from 1 to {MOST_KEPT:,}."


def _check_watching(schedule: AbstractSchedule) -> Iterator[Problem]:
    if schedule.expected_within is not None and schedule.expected_within <= timedelta(0):
        yield "expected_within", "This must be longer than zero. Leave it empty for no alert."
    if schedule.ping_url and not _is_stored(schedule, "ping_url"):
        alerts = conf.get_config().alerts
        refusal = find_refusal(schedule.ping_url, () if alerts is None else alerts.hosts)
        if not refusal and "?" in schedule.ping_url:
            refusal = "An address to ping must have no query, because /start and /fail are appended to it."
        if refusal:
            yield "ping_url", refusal


def _check_call(schedule: AbstractSchedule) -> list[Problem]:
    field = "task"
    try:
        task = registry.get_task(schedule.task)
        field = "args"
        validate_json(schedule.args, {})
        field = "kwargs"
        validate_json([], schedule.kwargs)
        if not schedule.kwargs or not registry.can_take(task, schedule.args):
            field = "args"
        registry.check_call(task, schedule.args, schedule.kwargs)
        if schedule.task == commands.COMMAND_TASK and (refusal := commands.find_refusal(schedule.args)):
            raise InvalidArguments(refusal)
    except (UnknownTask, InvalidArguments) as error:
        return [(field, str(error))]
    found = find_misfits(task.func, registry.get_signature(task), schedule.args, schedule.kwargs)
    problems = [("kwargs" if name in schedule.kwargs else "args", problem) for name, problem in found]
    if problems and _is_stored(schedule, "task", "args", "kwargs"):
        problems = []
    if schedule.backend and (refused := handover.find_refusal(task, schedule.backend, schedule.priority)):
        problems.append((refused.field, str(refused)))
    return problems


def _check_callbacks(schedule: AbstractSchedule) -> Iterator[Problem]:
    """Check the callbacks, which are called with the primary key of the run and its due point."""
    for field in CALLBACKS:
        path = getattr(schedule, field)
        if not path:
            continue
        try:
            registry.check_call(registry.get_task(path), [0, ""], {})
            if path == commands.COMMAND_TASK:
                raise InvalidArguments("A management command cannot be a callback. Name a task that calls it.")
        except (UnknownTask, InvalidArguments) as error:
            yield field, str(error)
        else:
            if not find_first_alias():
                yield field, "TASKS has no backend django_delayq.backend.DelayQBackend to enqueue this task. Add one."
