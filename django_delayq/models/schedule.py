"""The row that users edit. Saving it never fails because of Redis, and never starts a run."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import models, router, transaction
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from .. import conf
from ..conf.alerts import LONGEST
from ..recurrence.point import utcnow
from ..recurrence.policy import Recurring
from ..recurrence.preview import PreviewPoint, preview
from .columns import UTCDateTimeField, list_own_fields
from .definition import clean_definition
from .kept import SWITCH_FIELDS, Definition
from .primary import PrimaryModel, lock_to_delete
from .queryset import ScheduleQuerySet
from .records import Tombstone
from .versions import BOOKKEEPING_FIELDS, build_version, now_generation

#: Fields that may change in a definition that is no longer valid.
UNCHECKED_FIELDS = {"name", "description", *SWITCH_FIELDS}


def default_timezone() -> str:
    return conf.get_project_timezone()


def default_queue() -> str:
    return conf.get_config().queues[0]


class Schedule(Recurring, PrimaryModel):
    """A task with its recurrence and policies."""

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

    objects = ScheduleQuerySet.as_manager()

    #: The user who makes the next edit. `save()` stores it with the replaced definition, and clears it.
    changed_by = ""

    if TYPE_CHECKING:
        from .state import ScheduleState

        state: ScheduleState

    @property
    def is_declared(self) -> bool:
        """True if the code declares the schedule, and so owns its fields."""
        return self.declared_key is not None and self.declaration_gone_at is None

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("name",)
        permissions = (
            ("run_schedule", "Can run schedules now, and backfill them"),
            ("pause_schedule", "Can pause and resume schedules"),
        )
        constraints = (
            models.CheckConstraint(
                name="delayq_schedule_one_recurrence",
                condition=(
                    Q(kind="cron", every__isnull=True, at__isnull=True) & ~Q(cron="")
                    | Q(kind="every", cron="", every__isnull=False, at__isnull=True)
                    | Q(kind="once", cron="", every__isnull=True, at__isnull=False)
                ),
                violation_error_message=_("Set only one of cron, every and at: the one that the kind names."),
            ),
            models.CheckConstraint(
                name="delayq_schedule_positive",
                condition=(Q(every__isnull=True) | Q(every__gt=timedelta(0)))
                & Q(max_attempts__gte=1, jitter__gte=timedelta(0)),
                violation_error_message=_("Intervals and attempts are positive, jitter is not negative."),
            ),
        )
        indexes = (
            models.Index(
                fields=("generation",),
                name="delayq_schedule_unmirrored",
                condition=~Q(generation=F("synced_generation")),
            ),
            models.Index(fields=("enabled", "name"), name="delayq_schedule_enabled"),
            models.Index(fields=("task",), name="delayq_schedule_task"),
            models.Index(fields=("kind", "name"), name="delayq_schedule_kind"),
            models.Index(fields=("queue", "name"), name="delayq_schedule_queue"),
            models.Index(fields=("queue", "id"), name="delayq_schedule_by_queue"),
            models.Index(
                fields=("task", "backend", "priority"), name="delayq_schedule_handed_over", condition=~Q(backend="")
            ),
            models.Index(fields=("id",), name="delayq_schedule_expected", condition=Q(expected_within__isnull=False)),
        )

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save with a new generation; Redis follows on commit. Raises ValidationError for values that cannot run."""
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        fields = kwargs.get("update_fields")
        if fields is not None and set(fields) <= BOOKKEEPING_FIELDS:
            super().save(*args, **kwargs)
            return
        with transaction.atomic(using=using):
            old = None
            if self.pk is not None and not kwargs.get("force_insert"):
                old = Schedule._base_manager.using(using).select_for_update().filter(pk=self.pk).first()
            if old is None:
                self.declared_key = self.declaration_gone_at = None  # of a copy
                self.begin_version()
                self.clean()
                super().save(*args, **kwargs)
                return
            names = {field.name for field in list_own_fields(type(self))} - BOOKKEEPING_FIELDS
            names = names if fields is None else names & set(fields)
            changed = {name for name in names if getattr(self, name) != getattr(old, name)}
            if not changed and self._meta.concrete_model is not Schedule:  # only fields of a subclass
                self.__dict__.update({name: getattr(old, name) for name in BOOKKEEPING_FIELDS})
                super().save(*args, **kwargs)
                return
            if changed - UNCHECKED_FIELDS:
                self.clean()
            if "queue" in changed:
                Tombstone.add([(old.pk, old.queue, old.generation)], using=using)
            version = build_version(old, changed)
            self.__dict__.update(version)
            by, self.changed_by = self.changed_by, ""
            if fields is not None:
                kwargs["update_fields"] = {*fields, *version}
            super().save(*args, **kwargs)
            # If SQL edited the row before, the sync has created a further version.
            self.refresh_from_db(using=using, fields=["generation", "replaced_from", "effective_from"])
            Definition.objects.using(using).keep([old], {old.pk: self.generation}, by)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Delete, even while it runs: no new run starts, Redis follows. See Note [Schedules are locked first]."""
        using = using or router.db_for_write(type(self), instance=self)
        if keep_parents and self._meta.concrete_model is not Schedule:  # delete only the row of the subclass
            return super().delete(using=using, keep_parents=True)
        with transaction.atomic(using=using):
            lock_to_delete(Schedule._base_manager.using(using).filter(pk=self.pk))
            return super().delete(using=using)

    delete.alters_data = True  # type: ignore[attr-defined]

    def preview(self, n: int, start: datetime | None = None) -> list[PreviewPoint]:
        """Return the first `n` undecided due points after `start`, by default from now, with notes on each."""
        return preview(self, n, start or utcnow())

    def clean(self) -> None:
        super().clean()
        clean_definition(self)

    def begin_version(self) -> None:
        """Make this row a definition that begins now."""
        now = utcnow()
        self.generation = max(int(self.generation), now_generation())
        self.replaced_from, self.effective_from = None, max(self.created_at, now)
        self.synced_generation = 0
        self.updated_at = now

    def pause(self, reason: str = "", *, by: str = "") -> None:
        """Start no further run; a running one finishes and is recorded. `by` names the user."""
        self.enabled, self.pause_reason, self.changed_by = False, reason, by
        self.save(update_fields=SWITCH_FIELDS)

    def resume(self, *, by: str = "") -> None:
        """Continue with the first due point from now on. Points during the pause are not made up for."""
        self.enabled, self.pause_reason, self.changed_by = True, "", by
        self.save(update_fields=SWITCH_FIELDS)
