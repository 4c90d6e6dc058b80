"""The form of a schedule. `Schedule.clean()` validates the definition; the form assigns its errors to inputs."""

from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any, cast
from zoneinfo import available_timezones

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import QueryDict
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf
from ..calls import handover, registry
from ..calls.handover import LEAST_PRIORITY, MOST_PRIORITY
from ..exceptions import InvalidRecurrence
from ..models import Schedule, read_tags
from ..recurrence import parse_every
from ..recurrence.zone import get_zone
from .call_inputs import CallField, TypedCall


@cache
def list_zones() -> list[str]:
    """Return the zones to offer. Cached, because listing them reads every file of the system's time zones."""
    return sorted({"UTC", *(zone for zone in available_timezones() if "/" in zone)})


def _add_former(known: dict[str, Any], former: str, gone: str) -> list[tuple[str, Any]]:
    """Return the choices, and the `former` value with the label `gone` if it is not one of them."""
    return [*known.items(), *([(former, gone)] if former and former not in known else [])]


def list_task_choices(former: str) -> list[tuple[str, Any]]:
    """Return every installed task's path and summary."""
    known = {path: Truncator(registry.get_summary(task)).chars(100) for path, task in registry.get_tasks().items()}
    new = registry.resolve_path(former)
    return _add_former(known, former, _("not installed") if new == former else _("alias of %(task)s") % {"task": new})


def list_queue_choices(former: str) -> list[tuple[str, Any]]:
    known = {queue: queue for queue in conf.get_config().queues}
    return _add_former(known, former, _("%(queue)s (no setting names it)") % {"queue": former})


def list_backend_choices(former: str) -> list[tuple[str, Any]]:
    known = {alias: f"{alias} ({name})" for alias, name in handover.list_backends().items()}
    known = {"": _("workers of this app"), **known}
    return _add_former(known, former, _("%(backend)s (not in TASKS)") % {"backend": former})


INSTANTS = ("at", "start_at", "end_at")
CHOICES = {"queue": list_queue_choices, "backend": list_backend_choices}
#: Values of empty inputs.
EMPTY = {"jitter": timedelta(0), "priority": 0}
LIMITS = {
    "priority": (MinValueValidator(LEAST_PRIORITY), MaxValueValidator(MOST_PRIORITY)),
    "max_attempts": (MinValueValidator(1),),
}
#: If one of these fields has an error, an error of the other may be a mere consequence.
CALL_FIELDS = frozenset(("task", "call"))


def _build_plain_input(css_class: str, **attrs: Any) -> forms.TextInput:
    """Return an input of text that is not prose: the browser neither completes it nor checks its spelling."""
    return forms.TextInput(attrs={"class": css_class, "autocomplete": "off", "spellcheck": "false", **attrs})


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    call = CallField(label=gettext_lazy("Arguments"), required=False)
    tags = forms.CharField(
        required=False,
        label=gettext_lazy("Tags"),
        help_text=gettext_lazy("Words to filter the list by, between commas, such as billing, nightly."),
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    queue = forms.ChoiceField(label=gettext_lazy("Queue"))
    backend = forms.ChoiceField(
        label=gettext_lazy("Executed by"),
        required=False,
        help_text=gettext_lazy(
            "The workers of this app run the task, or hand it over to a backend of TASKS when it is "
            "due. Then the run succeeds as soon as that backend accepts it. The task goes to its own "
            "@task(queue_name=…)."
        ),
    )
    #: The generation that was shown, to detect a concurrent edit.
    seen = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Meta:  # the admin sets the model and the fields
        widgets = {
            "task": _build_plain_input("vTextField delayq-task", list="delayq-tasks"),
            "on_success": _build_plain_input("vTextField", list="delayq-tasks"),
            "on_failure": _build_plain_input("vTextField", list="delayq-tasks"),
            "timezone": _build_plain_input("", list="delayq-zones", size=32),
            "description": forms.Textarea(attrs={"rows": 2, "cols": 60, "class": "vLargeTextField"}),
            "cron": _build_plain_input("vTextField delayq-cron"),
        }
        help_texts = {
            "task": gettext_lazy("A @task function of an installed app. Type a part of its name or description."),
            "cron": gettext_lazy(
                "Minute, hour, day of month, month, day of week: 0 9 * * 1-5 is 09:00 from Monday to Friday. "
                "Six fields begin with the seconds. @hourly, @daily, L, 15W, 5#2 and H work too."
            ),
            "every": gettext_lazy("For example 90s, 15m, 1h30m or 2d."),
            "timezone": gettext_lazy("Zone of the cron expression and of the times in this form, such as Europe/Riga."),
            "start_at": gettext_lazy("No due time before this time of that zone; intervals start here."),
            "max_runs": gettext_lazy("Counts runs, not skipped due times. Empty: no end."),
            "grace": gettext_lazy(
                "A later start counts as missed. Empty: half the gap to the next due time, at most 1m."
            ),
            "catch_up_window": gettext_lazy("Older due times never run late. Empty: no limit."),
            "jitter": gettext_lazy("Maximum random delay of the start. Empty or 0: none."),
            "timeout": gettext_lazy(
                "A task that takes longer gets an exception, and its attempt fails; if it does not end "
                "then, its process is replaced. For example 10m. Empty: no limit."
            ),
            "priority": gettext_lazy(
                "For the backend that it is handed over to: -100 to 100, higher is sooner. 0: the task's own priority."
            ),
            "max_attempts": gettext_lazy("1: a failure is final. More: failed attempts are retried."),
            "backoff": gettext_lazy("Delay before the second attempt; doubles each time, up to 1h."),
            "expected_within": gettext_lazy(
                "Maximum time from a due time to a success; after it, an alert is sent. For example 1h. "
                "Empty: no alert."
            ),
            "ping_url": gettext_lazy(
                "Address of a service such as healthchecks.io, which is notified when a run begins, "
                "succeeds and fails. Its host must be in the settings."
            ),
            "keep": gettext_lazy(
                "Workers delete older runs. The newest outcome always stays, and deleted runs cannot be backfilled."
            ),
            "on_success": gettext_lazy(
                "A @task function to enqueue as a job when a run has succeeded. Its arguments are the "
                "key of the run and the due time."
            ),
            "on_failure": gettext_lazy("The same, when a run has failed finally or is lost."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        schedule = self.instance
        for name in CHOICES.keys() & fields.keys():
            fields[name].choices = CHOICES[name](getattr(schedule, name))
        if schedule._state.adding:
            self.initial = {"queue": schedule.queue, "kind": Schedule.Kind.CRON, **self.initial}
        else:
            self.initial["seen"] = schedule.generation
            self.initial["tags"] = ", ".join(tag.name for tag in schedule.tags.all())
        for name in EMPTY.keys() & fields.keys():
            fields[name].required = False
        for name in LIMITS.keys() & fields.keys():
            fields[name].validators.extend(LIMITS[name])
        if "timezone" in fields:
            fields["timezone"].show_hidden_initial = False  # Django sets it for a callable default
            with suppress(InvalidRecurrence):  # its field reports it
                zone = get_zone(str(self["timezone"].value()))
                for name in fields.keys() & INSTANTS:  # read and shown in the typed zone, or the stored one
                    fields[name].zone = zone
        if "task" in fields:  # otherwise the field is read-only
            self.initial["call"] = stored = TypedCall(schedule.args, schedule.kwargs)
            path = str(self["task"].value() or "")
            fields["call"].widget.settle(path, stored, self.data if self.is_bound else None)

    def clean_call(self) -> None:
        self.instance.args, self.instance.kwargs = vars(self.cleaned_data["call"]).values()

    def clean_tags(self) -> list[str]:
        return read_tags(self.cleaned_data["tags"])

    def clean_timezone(self) -> str:
        """Validate the zone for every kind, because instants are read in it."""
        try:
            get_zone(name := str(self.cleaned_data["timezone"]))
        except InvalidRecurrence as error:
            raise ValidationError(str(error), code="invalid") from None
        return name

    def clean(self) -> dict[str, Any]:
        """Move `@every 1h30m` from cron to the interval, and keep the fractions of seconds of unchanged instants."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        every = parse_every(values.get("cron") or "")
        if every is not None and values.get("kind") in (Schedule.Kind.CRON, Schedule.Kind.EVERY):
            values.update(kind=Schedule.Kind.EVERY, every=every, cron="")
        for name in EMPTY.keys() & values.keys():
            values[name] = values[name] or EMPTY[name]
        for name in INSTANTS:  # inputs have whole seconds
            if name in values and name not in self.changed_data:
                values[name] = getattr(self.instance, name)
        seen = values.get("seen")
        if self.instance._state.adding or seen is None or seen == self.instance.generation:
            return values
        data = cast(QueryDict, self.data).copy()
        data[self.add_prefix("seen")] = str(self.instance.generation)
        self.data = data
        message = _(
            "Another user changed this schedule while you edited it; nothing is saved yet. Compare "
            "in another tab, then save again to overwrite the other change."
        )
        raise ValidationError(message, code="changed_meanwhile")

    def add_error(self, field: str | None, error: Any) -> None:
        """Leave out consequences of existing errors, and show errors without a field above the form."""
        if field is None and hasattr(error, "error_dict"):
            placed: dict[str, list[ValidationError]] = {}
            known = {*self.errors, *(CALL_FIELDS if CALL_FIELDS & self.errors.keys() else ())}
            for name, found in error.error_dict.items():
                name = "call" if name in ("args", "kwargs") else name
                if name not in known:
                    placed.setdefault(name if name in self.fields else NON_FIELD_ERRORS, []).extend(found)
            if not placed:
                return
            error = ValidationError(placed)
        super().add_error(field, error)
