"""The form of a schedule, and that of a pause. Whether a definition is valid is for `Schedule.clean()` to say;
here its errors are only put where they belong.
"""

from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..exceptions import InvalidRecurrence
from ..handover import LEAST_PRIORITY, MOST_PRIORITY
from ..models import Schedule
from ..timing import parse_every
from ..timing.zone import get_zone
from .formfields import (
    ArgumentsField,
    ZoneInput,
    backend_choices,
    queue_choices,
    task_choices,
    with_unknown_backend,
    with_unknown_queue,
    with_vanished_task,
)

if TYPE_CHECKING:
    Base = forms.ModelForm[Schedule]
else:
    Base = forms.ModelForm

INSTANTS = ("at", "start_at", "end_at")
#: What is wrong with one of these may be only a consequence of what is wrong with another.
CALL_FIELDS = frozenset(("task", "args", "kwargs"))


def default_queue() -> str:
    """Return the first queue that the settings name."""
    return conf.get_config().queues[0]


class ScheduleForm(Base):
    """A schedule as people edit it."""

    task = forms.ChoiceField(
        label=gettext_lazy("Task"),
        choices=task_choices,
        widget=forms.Select(attrs={"class": "delayq-task"}),
        help_text=gettext_lazy("A @task function of an installed app."),
    )
    args = ArgumentsField(
        container=list,
        label=gettext_lazy("Positional arguments"),
        help_text=gettext_lazy('A JSON list, such as [42, "text"].'),
    )
    kwargs = ArgumentsField(
        container=dict,
        label=gettext_lazy("Keyword arguments"),
        help_text=gettext_lazy('A JSON object, such as {"days": 2}.'),
    )
    queue = forms.ChoiceField(label=gettext_lazy("Queue"), choices=queue_choices, initial=default_queue)
    backend = forms.ChoiceField(
        label=gettext_lazy("Executed by"),
        choices=backend_choices,
        required=False,
        help_text=gettext_lazy(
            "Our own workers execute the task, or hand it over to a backend of TASKS when it is due: then the run has "
            "succeeded as soon as that backend has accepted it, and how it goes on there is told there. The task goes "
            "to its own @task(queue_name=…)."
        ),
    )
    #: The generation that was shown; tells whether somebody else saved meanwhile.
    seen = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Meta:
        model = Schedule
        fields = "__all__"
        widgets = {
            "timezone": ZoneInput,
            "description": forms.Textarea(attrs={"rows": 2, "cols": 60, "class": "vLargeTextField"}),
            "cron": forms.TextInput(
                attrs={"class": "vTextField delayq-cron", "spellcheck": "false", "autocomplete": "off"}
            ),
        }
        help_texts = {
            "cron": gettext_lazy(
                "Minute, hour, day of month, month, day of week: 0 9 * * 1-5 is 09:00 from Monday to Friday. "
                "Six fields begin with the seconds. @hourly, @daily, L, 15W, 5#2 and H work too."
            ),
            "every": gettext_lazy("For example 90s, 15m, 1h30m or 2d."),
            "at": gettext_lazy("Runs once, at this time of the time zone below."),
            "timezone": gettext_lazy(
                "The clock that a cron expression and every time in this form are read by, such as Europe/Riga."
            ),
            "start_at": gettext_lazy("No due point before this time of that zone; intervals are counted from here."),
            "end_at": gettext_lazy("No due point after this time of that zone."),
            "max_runs": gettext_lazy("Counts runs, not skipped points. Empty: no end."),
            "grace": gettext_lazy("How late still counts as on time. Empty: half the gap to the next, at most 1m."),
            "catch_up_window": gettext_lazy("Points older than this are never run late. Empty: no limit."),
            "max_catch_up": gettext_lazy("With “run all”: only the newest so many."),
            "jitter": gettext_lazy("Spreads the start of a point over this time after it. Empty or 0: none."),
            "timeout": gettext_lazy(
                "A task that takes longer gets an exception, and its attempt has failed; if that does not end it, its "
                "process is replaced. For example 10m. Empty: no limit."
            ),
            "priority": gettext_lazy(
                "For the backend that it is handed over to: from -100 to 100, higher is sooner. 0: what the task says."
            ),
            "max_attempts": gettext_lazy("1: a failure is final. More: it is tried again."),
            "backoff": gettext_lazy("The wait before the second attempt; doubles each time, up to 1h."),
            "enabled": gettext_lazy("Unticked, no further run starts."),
            "pause_reason": gettext_lazy("Shown in the list while it is paused."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        schedule = self.instance
        self.fields["task"].choices = with_vanished_task(task_choices(), schedule.task)  # type: ignore[attr-defined]
        self.fields["queue"].choices = with_unknown_queue(queue_choices(), schedule.queue)  # type: ignore[attr-defined]
        self.fields["backend"].choices = with_unknown_backend(backend_choices(), schedule.backend)  # type: ignore[attr-defined]
        if not schedule._state.adding:
            self.fields["seen"].initial = schedule.generation
        if "kind" in self.fields and schedule._state.adding:
            self.fields["kind"].initial = Schedule.Kind.CRON
        if "timezone" in self.fields:  # Django wants it where a default is computed; it is the same all day
            self.fields["timezone"].show_hidden_initial = False
            self._read_instants_in(str(self["timezone"].value()))
        if "jitter" in self.fields:
            self.fields["jitter"].required = False
        if "priority" in self.fields:
            self.fields["priority"].required = False
            limits = MinValueValidator(LEAST_PRIORITY), MaxValueValidator(MOST_PRIORITY)
            self.fields["priority"].validators.extend(limits)
        if "max_attempts" in self.fields:
            self.fields["max_attempts"].validators.append(MinValueValidator(1))

    def _read_instants_in(self, zone: str) -> None:
        """Have instants typed and shown in the zone that is typed, or shown; what is wrong with it its field tells."""
        try:
            info = get_zone(zone)
        except InvalidRecurrence:
            return
        for name in INSTANTS:
            if name in self.fields:
                self.fields[name].zone = info  # type: ignore[attr-defined]

    def clean_timezone(self) -> str:
        """Check the zone, whatever the kind: instants are read in it."""
        zone: str = self.cleaned_data["timezone"]
        try:
            return get_zone(zone).key
        except InvalidRecurrence as error:
            raise ValidationError(str(error), code="invalid") from None

    def clean_jitter(self) -> Any:
        """Take an empty jitter for none."""
        return self.cleaned_data["jitter"] or Schedule._meta.get_field("jitter").get_default()

    def clean_priority(self) -> int:
        """Take an empty priority for that of the task."""
        return self.cleaned_data["priority"] or 0

    def clean(self) -> dict[str, Any]:
        """Move `@every 1h30m` from cron to the interval, and keep what the form cannot show."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        every = parse_every(values.get("cron") or "")
        if every is not None and values.get("kind") in (Schedule.Kind.CRON, Schedule.Kind.EVERY):
            values.update(kind=Schedule.Kind.EVERY, every=every, cron="")
        for name in INSTANTS:  # inputs have whole seconds
            if name in values and name not in self.changed_data:
                values[name] = getattr(self.instance, name)
        self._check_unseen(values.get("seen"))
        return values

    def _check_unseen(self, seen: int | None) -> None:
        if self.instance._state.adding or seen is None or seen == self.instance.generation:
            return
        data = cast(QueryDict, self.data).copy()
        data[self.add_prefix("seen")] = str(self.instance.generation)
        self.data = data
        message = _(
            "Somebody changed this schedule while you edited it; nothing of yours is saved yet. Look at it in another "
            "tab, then save again: that overwrites the other change."
        )
        raise ValidationError(message, code="changed_meanwhile")

    def add_error(self, field: str | None, error: Any) -> None:
        """Leave out what is only a consequence of an error that is there, and show what has no field above the form."""
        if field is None and hasattr(error, "error_dict"):
            error = ValidationError(self._placed(error.error_dict))
            if not error.error_dict:
                return
        super().add_error(field, error)

    def _placed(self, errors: dict[str, list[ValidationError]]) -> dict[str, list[ValidationError]]:
        placed: dict[str, list[ValidationError]] = {}
        wrong_call = CALL_FIELDS & self.errors.keys()
        for name, found in errors.items():
            if name in self.errors or (name in CALL_FIELDS and wrong_call):
                continue
            placed.setdefault(name if name in self.fields else NON_FIELD_ERRORS, []).extend(found)
        return placed


class PauseForm(forms.Form):
    """Why schedules are paused."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        required=False,
        widget=forms.TextInput(attrs={"class": "vTextField", "autofocus": True}),
        help_text=gettext_lazy("Shown in the list, for whoever wonders. May be left empty."),
    )
