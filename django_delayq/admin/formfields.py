"""Form fields: durations, whole numbers and instants. The model validates the row."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.dateparse import parse_duration as parse_standard
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..exceptions import InvalidRecurrence
from ..recurrence.zone import find_instant
from .display import UNITS, format_duration

#: Maximum duration: a century, which every database can store.
LONGEST = timedelta(days=36_525)
_PART = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|us|[dhms])\s*")
#: A point or comma that may be a decimal one or a thousands separator; in `0.250` it can only be the former.
_AMBIGUOUS = re.compile(r"(?<![\w:.,])[1-9][0-9]{0,2}[.,][0-9]{3}(?![0-9])")


def parse_duration(text: str) -> timedelta:
    """Parse `90` (seconds), `15m`, `1h30m`, `2d`, `00:15:00` or `PT15M`; else raise ValueError with what to write."""
    text = text.strip()
    if _AMBIGUOUS.search(text):
        message = _("“%(text)s” is ambiguous: the point may separate thousands. Write 1000 or 1.5, for example.")
        raise ValueError(message % {"text": text})
    try:
        value = _read(text.lower())
    except OverflowError:
        value = timedelta.max
    if value is None or value < timedelta(0):
        raise ValueError(_("“%(text)s” is not a duration. Write 90s, 15m, 1h30m, 2d or 00:15:00.") % {"text": text})
    if value > LONGEST:
        raise ValueError(_("A duration is at most %(days)d days.") % {"days": LONGEST.days})
    return value


def _read(text: str) -> timedelta | None:
    parts = _PART.findall(text)
    if parts and not _PART.sub("", text):
        lengths = {unit: UNITS[unit] * float(amount) for amount, unit in parts}
        return sum(lengths.values(), timedelta(0)) if len(lengths) == len(parts) else None
    if text.count(":") == 1 or not any(map(str.isdigit, text)):  # hours or minutes; Django reads "PT" as zero
        return None
    return parse_standard(text.upper() if text.startswith("p") else text)


class DurationField(forms.Field):
    widget = forms.TextInput(attrs={"class": "delayq-duration", "size": 12, "autocomplete": "off"})

    def prepare_value(self, value: Any) -> Any:
        return format_duration(value) if isinstance(value, timedelta) else value

    def to_python(self, value: Any) -> timedelta | None:
        try:
            return parse_duration(value) if value and value.strip() else None
        except ValueError as error:
            raise ValidationError(str(error), code="invalid") from None


class WholeNumberField(forms.IntegerField):
    """Accepts only digits. Django reads `1.000` as 1, but it is a thousand in German."""

    re_decimal = re.compile(r"(?!)")
    default_error_messages = {
        "invalid": gettext_lazy("Enter a whole number of digits only, such as 1000, without a point or comma.")
    }


class InstantField(forms.SplitDateTimeField):
    """An aware instant, read and shown in `zone`, by default the current one, also if USE_TZ is off."""

    zone: tzinfo | None = None

    def prepare_value(self, value: Any) -> Any:
        """Return local time without a zone, so that the widget converts nothing."""
        if isinstance(value, datetime) and timezone.is_aware(value):
            return timezone.localtime(value, self.zone).replace(tzinfo=None)
        return value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.prepare_value(initial), data)

    def compress(self, data_list: Any) -> datetime | None:
        """Return an aware datetime or None. A local time that occurs twice is the first one."""
        with timezone.override(UTC):  # Django would read it in the current zone; in UTC every time exists
            found = super().compress(data_list)
        if found is None:
            return None
        try:
            return find_instant(found.replace(tzinfo=None), self.zone or timezone.get_current_timezone())
        except InvalidRecurrence as error:
            raise ValidationError(str(error), code="invalid") from None
