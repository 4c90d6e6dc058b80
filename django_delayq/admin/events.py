"""Events of one row: entries of the admin's log, and definitions that edits replaced, newest first.

Note [Two sources]
The admin's log has every action in the admin and its user, but no values. The kept definitions have the values, also
of edits by code, but a user only if the caller named one. An edit that the admin saved and logged becomes one line: the
definition has the same user and was replaced less than TOGETHER before the entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin.models import ADDITION, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Control, Definition, Schedule
from ..models.differences import SWITCH, Values, differing, from_json, values_of
from ..models.primary import heirs
from ..text import plain
from . import definitions, display

#: Maximum entries read per row, the newest; the log has no index by object.
MOST_READ = 1_000
TOGETHER = timedelta(seconds=5)


@dataclass(slots=True)
class Event:
    """One line: a log entry, a replaced definition, or both."""

    at: datetime
    who: str
    name: str
    text: str = ""
    changes: SafeString | str = ""
    note: str = ""
    label: str = ""
    address: str = ""
    definition: Definition | None = None
    #: Whether restoring the definition would change anything now.
    restorable: bool = False

    @property
    def shown_at(self) -> display.Html:
        return display.instant(self.at)


def read(row: Schedule | Control) -> list[Event]:
    """Return the events of a row. See Note [Two sources]."""
    edits = list(_edits(row)) if isinstance(row, Schedule) else []
    found: list[Event] = []
    for event in sorted([*_entries(row), *edits], key=lambda event: event.at, reverse=True):
        entry = next((each for each in reversed(found) if _belongs(each, event)), None)
        if entry is None:
            found.append(event)
        else:
            entry.changes, entry.note = event.changes, event.note
            entry.definition, entry.restorable = event.definition, event.restorable
    return found


def _belongs(entry: Event, edit: Event) -> bool:
    alone = entry.definition is None and edit.definition is not None
    return alone and entry.who == edit.who and entry.at - edit.at < TOGETHER


def _entries(row: Schedule | Control) -> Iterator[Event]:
    model: Any = Schedule if isinstance(row, Schedule) else Control
    types = ContentType.objects.get_for_models(*heirs(model), for_concrete_models=False)
    rows = LogEntry.objects.filter(content_type__in=[each.pk for each in types.values()], object_id=str(row.pk))
    for entry in rows.select_related("user").order_by("-pk")[:MOST_READ]:
        at = instant_of(entry)
        yield Event(at, plain(entry.user.get_username()), plain(entry.object_repr), message_of(entry))


def message_of(entry: LogEntry) -> str:
    """Return the message of a log entry."""
    text = entry.get_change_message() or {ADDITION: _("Added."), DELETION: _("Deleted.")}.get(entry.action_flag, "")
    return plain(text)


def _edits(schedule: Schedule) -> Iterator[Event]:
    kept = list(Definition.objects.using(schedule._state.db).filter(schedule=schedule.pk).order_by("generation"))
    versions: list[Definition | Schedule] = [*kept, schedule]
    now = values_of(schedule)
    for each, following in zip(kept, versions[1:], strict=True):
        then = from_json(each.values)
        after: Values = from_json(following.values) if isinstance(following, Definition) else now
        rows = definitions.changes(then, after)
        if rows:
            yield Event(
                each.replaced_at, plain(each.by), plain(then["name"]), changes=definitions.listed(rows),
                note="" if each.is_followed_by(following)
                else _("This includes later edits that were not kept: bulk updates, or SQL."),
                definition=each, restorable=any(unit is not SWITCH for unit in differing(then, now)),
            )  # fmt: skip


def instant_of(entry: LogEntry) -> datetime:
    """Return the time of a log entry, aware even if USE_TZ is off."""
    at = entry.action_time
    return at if timezone.is_aware(at) else timezone.make_aware(at)
