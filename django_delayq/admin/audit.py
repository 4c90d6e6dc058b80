"""Who did what: the log of the admin and the definitions that edits replaced, in one list, the newest first.

Note [Two sources]
The log knows every act in the admin, by whom, and no values; the kept definitions know values, also of edits by code,
and by whom only where the caller said so. Both are read by their primary keys, downwards from a place that the address
names, so a page of everything costs the same however much there is; one of few among many costs what Django's own
history does: the log has no index by object. What the admin has saved and logged in one go becomes one line:
an edit of the same schedule by the same person, no more than TOGETHER before the entry.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.contrib.admin.models import ADDITION, DELETION, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import Model, OuterRef, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from .. import ledger
from ..declared.values import SWITCH, Values, differing, from_json, values_of
from ..models import Control, Definition, Dismissal, Run, Schedule
from ..models.primary import heirs
from ..plain import plain
from ..validators import read_key
from . import definitions, display
from .base import BaseAdmin

#: So many are on a page.
PAGE = 50
TOGETHER = timedelta(seconds=5)


class Kind(NamedTuple):
    """What acts are about, who may read of them, and which page an entry leads to, of which model."""

    model: type[Model]
    permission: str
    page: tuple[str, str] | None


KINDS = {
    "schedule": Kind(Schedule, "view_schedule", ("history", "schedule")),
    "run": Kind(Run, "view_run", ("change", "run")),
    "control": Kind(Control, "view_control", ("history", "control")),
    "dismissal": Kind(Dismissal, "view_run", None),
}


@dataclass(slots=True)
class Event:
    """One line: an entry of the log, a definition that was replaced, or both."""

    at: datetime
    who: str
    kind: str
    key: str
    name: str
    text: str = ""
    changes: SafeString | str = ""
    note: str = ""
    gone: bool = False
    label: str = ""
    address: str = ""
    definition: Definition | None = None
    #: Whether restoring the definition would change anything now.
    restorable: bool = False

    @property
    def shown_at(self) -> display.Html:
        return display.instant(self.at)


class Asked(NamedTuple):
    """What an address asks for: of whom, of what, and the keys of an entry and a definition that it goes on from."""

    who: str = ""
    kind: str = ""
    key: str = ""
    before: tuple[int, int] | None = None

    @classmethod
    def of(cls, request: HttpRequest) -> "Asked":
        given, kind = request.GET, request.GET.get("kind", "")
        return cls(given.get("who", "").strip(), kind if kind in KINDS else "", given.get("key", ""), _place(given))

    def links(self, before: tuple[int, int] | None) -> dict[str, Any]:
        """Return the addresses of the next page, which begins at that place, and of the first; '' where this is it."""
        following = "" if before is None else self._address(before="{}.{}".format(*before))
        return {"older": following, "newest": self._address() if self.before else ""}

    def _address(self, **place: str) -> str:
        wanted = {"who": self.who, "kind": self.kind, "key": self.key, **place}
        return f"?{urlencode({name: value for name, value in wanted.items() if value})}"


def _place(given: Any) -> tuple[int, int] | None:
    entry, definition = map(read_key, given.get("before", "").partition(".")[::2])
    return None if entry is None or definition is None else (entry, definition)


def read(asked: Asked, kinds: Iterable[str]) -> tuple[list[Event], tuple[int, int] | None]:
    """Return a page of what happened to these kinds, and where the next one begins. See Note [Two sources]."""
    wanted = [kind for kind in kinds if asked.kind in ("", kind)]
    entries = _entries(asked, wanted)
    replaced = _replaced(asked) if "schedule" in wanted else []
    both: list[LogEntry | Definition] = [*entries, *replaced]
    both.sort(key=_order, reverse=True)
    page = both[:PAGE]
    before: tuple[int, int] | None = None
    if len(both) > PAGE:
        first = asked.before or (2**63 - 1, 2**63 - 1)
        before = (
            min((each.pk for each in page if isinstance(each, LogEntry)), default=first[0]),
            min((each.pk for each in page if isinstance(each, Definition)), default=first[1]),
        )
    return _events(page), before


def _order(each: LogEntry | Definition) -> datetime:
    at = each.action_time if isinstance(each, LogEntry) else each.replaced_at
    return at if timezone.is_aware(at) else timezone.make_aware(at)


def _entries(asked: Asked, kinds: Sequence[str]) -> list[LogEntry]:
    models = [model for kind in kinds for model in heirs(KINDS[kind].model)]
    types = ContentType.objects.get_for_models(*models, for_concrete_models=False)
    rows = LogEntry.objects.filter(content_type__in=[each.pk for each in types.values()])
    if asked.who:  # read apart, so that the index of users is taken
        users: Any = get_user_model()._base_manager.filter(**{get_user_model().USERNAME_FIELD: asked.who})
        rows = rows.filter(user__in=list(users.values_list("pk", flat=True)))
    if asked.key:
        rows = rows.filter(object_id=asked.key)
    if asked.before is not None:
        rows = rows.filter(pk__lt=asked.before[0])
    return list(rows.select_related("user", "content_type").order_by("-pk")[: PAGE + 1])


def _replaced(asked: Asked) -> list[Definition]:
    rows = Definition.objects.using(ledger.database())
    following = rows.filter(schedule=OuterRef("schedule"), generation__gt=OuterRef("generation")).order_by("generation")
    rows = rows.annotate(next_pk=Subquery(following.values("pk")[:1]))
    if asked.who:
        rows = rows.filter(by=asked.who)
    if asked.key:
        rows = rows.filter(schedule=read_key(asked.key))
    if asked.before is not None:
        rows = rows.filter(pk__lt=asked.before[1])
    return list(rows.order_by("-pk")[: PAGE + 1])


def _events(page: Sequence[LogEntry | Definition]) -> list[Event]:
    """Return what is shown of these, the newest first."""
    edits = _edits([each for each in page if isinstance(each, Definition)])
    found: list[Event] = []
    for each in page:
        if isinstance(each, LogEntry):
            found.append(_logged(each))
        elif (edit := edits[each.pk]).changes:
            entry = next(filter(lambda event: _belongs(event, edit), reversed(found)), None)
            if entry is None:
                found.append(edit)
            else:
                entry.changes, entry.note = edit.changes, edit.note
                entry.definition, entry.restorable = edit.definition, edit.restorable
    return found


def _belongs(entry: Event, edit: Event) -> bool:
    same = (entry.kind, entry.key, entry.who) == (edit.kind, edit.key, edit.who)
    return same and entry.definition is None and entry.at - edit.at < TOGETHER


def _logged(entry: LogEntry) -> Event:
    text = entry.get_change_message()
    if not text:
        text = {ADDITION: _("Added."), DELETION: _("Deleted.")}.get(entry.action_flag, "")
    model: Any = entry.content_type.model_class() if entry.content_type else None
    kind = next((name for name, each in KINDS.items() if model and issubclass(model, each.model)), "")
    who = plain(entry.user.get_username())
    event = Event(_order(entry), who, kind, entry.object_id or "", plain(entry.object_repr), plain(text))
    event.gone = entry.action_flag == DELETION
    return event


def _edits(replaced: Sequence[Definition]) -> dict[int, Event]:
    """Return what each edit has changed, by the key of the definition that it replaced, in two queries."""
    using = ledger.database()
    schedules = Schedule.objects.using(using).in_bulk({each.schedule_id for each in replaced})
    nexts = Definition.objects.using(using).in_bulk([each.next_pk for each in replaced if each.next_pk])  # type: ignore[attr-defined]
    found = {}
    for each in replaced:
        schedule, then = schedules.get(each.schedule_id), from_json(each.values)
        following = nexts.get(each.next_pk) or schedule  # type: ignore[attr-defined]
        event = found[each.pk] = Event(
            each.replaced_at, plain(each.by), "schedule", str(each.schedule_id), plain(then["name"]), definition=each
        )
        if schedule is None or following is None:
            continue
        after: Values = from_json(following.values) if isinstance(following, Definition) else values_of(following)
        rows = definitions.changes(then, after)
        if rows:
            event.changes = definitions.listed(rows)
            event.restorable = any(unit is not SWITCH for unit in differing(then, values_of(schedule)))
        if not each.is_followed_by(following):
            event.note = _("This includes later edits that were not kept: bulk updates, or SQL.")
    return found


class AuditPage(BaseAdmin):
    """The page about everything, for whoever may view the overview; of each kind, for whoever may view that."""

    def audit_view(self, request: HttpRequest) -> HttpResponse:
        """Show who did what, as the address asks."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = Asked.of(request)
        kinds = [name for name, each in KINDS.items() if request.user.has_perm(f"django_delayq.{each.permission}")]
        events, before = read(asked, kinds)
        for event in events:
            model, _permission, page = KINDS[event.kind]
            event.label = str(model._meta.verbose_name)
            if page is not None and not event.gone:
                event.address = self.address(page[0], event.key, model=page[1])
        return self.page(
            request, "overview/audit.html", _("Audit"), events=events, asked=asked,
            kinds=[(name, capfirst(str(KINDS[name].model._meta.verbose_name))) for name in kinds],
            places=self.places(request, "audit"), **asked.links(before),
        )  # fmt: skip
