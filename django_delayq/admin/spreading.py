"""Spreads schedules that start in the same minute, by jitter or by `H`: shows before and after, asks, and saves."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import coming, ledger
from ..coming import Hour, look_into
from ..fields import utcnow
from ..models import Schedule
from ..validators import read_key
from .coming import ComingPage, address_of, clock, minute_bars, read_hour
from .durations import format_duration
from .formfields import DurationField

#: So many are changed in one request; of more, nothing is.
MOST_AT_ONCE = 100
JITTER, HASH = "jitter", "hash"
LONGEST = timedelta(hours=1)


class SpreadForm(forms.Form):
    """How to spread."""

    how = forms.ChoiceField(
        label=gettext_lazy("How"),
        choices=(
            (JITTER, gettext_lazy("jitter: each starts up to so much later")),
            (HASH, gettext_lazy("H: each gets a minute of its own, by its name")),
        ),
        help_text=gettext_lazy("H takes the place of a fixed minute in a cron expression."),
    )
    jitter = DurationField(label=gettext_lazy("up to"), required=False, initial=timedelta(minutes=10))

    def clean(self) -> dict[str, Any]:
        """Refuse jitter that spreads nothing, or beyond the hour that is shown."""
        found: dict[str, Any] = super().clean() or {}
        jitter = found.get("jitter")
        fits = jitter is not None and timedelta(minutes=1) <= jitter <= LONGEST
        if found.get("how") == JITTER and "jitter" not in self.errors and not fits:
            self.add_error("jitter", _("Jitter that spreads a minute is from 1m to 1h."))
        return found


class SpreadPage(ComingPage):
    """The action on the schedules of a minute, for whoever may change schedules."""

    def hour_page(self, request: HttpRequest, hour: Hour, **context: Any) -> HttpResponse:
        context.setdefault("form", SpreadForm())
        return super().hour_page(request, hour, **context)

    def spread_view(self, request: HttpRequest) -> HttpResponse:
        """Show the hour before and after and ask; with `apply`, save. The view is for POST only."""
        if not self.may_spread(request):
            raise PermissionDenied
        now, minute = utcnow(), request.POST.get("minute", "")
        first = read_hour(request.POST.get("hour", ""), now)
        if first is None or minute not in [str(number) for number in range(60)]:
            self.message_user(request, _("This hour has passed. Nothing was changed."), messages.WARNING)
            return HttpResponseRedirect(self.address("coming"))
        back = f"{self.address('coming')}{address_of(first)}&minute={minute}"
        hour, form = look_into(first, now), SpreadForm(request.POST)
        pks = self._chosen(request, hour, int(minute))
        if not pks or len(pks) > MOST_AT_ONCE:
            text = _("At most %(count)d schedules are spread at once. Choose fewer; nothing was changed.")
            text = text % {"count": MOST_AT_ONCE} if pks else _("No schedule was chosen. Nothing was changed.")
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(back)
        if not form.is_valid():
            return self.hour_page(request, hour, form=form)
        schedules = list(Schedule.objects.filter(pk__in=pks).select_related("state").order_by("name"))
        before = ledger.load_schedules(pks)
        changed, refused = [], []
        for schedule in schedules:
            reason = _change(schedule, **form.cleaned_data)
            if reason:
                refused.append((schedule.name, reason))
            else:
                changed.append(schedule)
        if "apply" in request.POST:
            self._save(request, changed, refused, form.cleaned_data)
            return HttpResponseRedirect(back)
        was = hour.minutes_of(before[schedule.pk] for schedule in changed)
        return self._ask(request, hour, was, changed, refused, back)

    def _chosen(self, request: HttpRequest, hour: Hour, minute: int) -> list[int]:
        """Return the keys of the schedules that were chosen."""
        pks = set(filter(None, map(read_key, request.POST.getlist("chosen"))))
        if request.POST.get("everyone"):
            pks |= {row.pk for row in hour.due(minute, MOST_AT_ONCE + 1)}
        return sorted(pks)

    def _ask(
        self,
        request: HttpRequest,
        hour: Hour,
        was: Sequence[int],
        changed: Sequence[Schedule],
        refused: Sequence[tuple[str, str]],
        back: str,
    ) -> HttpResponse:
        becomes = hour.minutes_of(changed)
        rest = [0] * 60 if hour.sample.is_estimate else hour.minutes  # a hundred are not seen beside what is estimated
        others = [max(0, count - own) for count, own in zip(rest, was, strict=True)]
        count = len(changed)
        title = ngettext("Spread %(count)d schedule", "Spread %(count)d schedules", count) % {"count": count}
        return self.page(
            request, "overview/spread.html", title, refused=refused, back=back,
            pictures=[
                (label, minute_bars(hour, [{"others": a, "chosen": b} for a, b in zip(others, own, strict=True)]),
                 _("at most %(count)d of them in a minute") % {"count": max(own)})
                for label, own in ((_("Before"), was), (_("After"), becomes))
            ],
            table=[
                (clock(hour, minute), was[minute], becomes[minute])
                for minute in range(60) if was[minute] or becomes[minute]
            ],
            hidden=[
                *((name, request.POST.get(name, "")) for name in ("hour", "minute", "how", "jitter")),
                *(("chosen", pk) for pk in sorted(schedule.pk for schedule in changed)),
            ] if changed else [],
        )  # fmt: skip

    def _save(
        self,
        request: HttpRequest,
        changed: Sequence[Schedule],
        refused: Sequence[tuple[str, str]],
        wanted: dict[str, Any],
    ) -> None:
        """Save each by itself; those that are refused stay as they are, and are told."""
        told = [f"{name}: {reason}" for name, reason in refused]
        done = 0
        for schedule in changed:
            schedule.changed_by = request.user.get_username()
            try:
                schedule.save(update_fields=["jitter"] if wanted["how"] == JITTER else ["cron"])
            except ValidationError as error:
                told.append(f"{schedule.name}: {' '.join(error.messages)}")
                continue
            done += 1
            what = (
                _("Spread: jitter %(jitter)s.") % {"jitter": format_duration(schedule.jitter)}
                if wanted["how"] == JITTER
                else _("Spread: %(cron)s.") % {"cron": schedule.cron}
            )
            self.log_change(request, schedule, what)
        if done:
            text = ngettext("%(count)d schedule is spread.", "%(count)d schedules are spread.", done)
            self.message_user(request, text % {"count": done}, messages.SUCCESS)
        for text in told:
            self.message_user(request, text, messages.WARNING)


def _change(schedule: Schedule, how: str, jitter: timedelta | None) -> str:
    """Change this instance, without saving it; return why it cannot be."""
    if how == JITTER:
        schedule.jitter = jitter or timedelta(0)
    else:
        cron = coming.with_hash(schedule.cron) if schedule.kind == Schedule.Kind.CRON else None
        if cron is None:
            return _("It has no cron expression with one fixed minute.")
        schedule.cron = cron
    try:
        schedule.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        return " ".join(error.messages)
    return ""
