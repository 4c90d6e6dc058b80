"""Versions of a definition. Knows the columns, not the models.

Note [Generations only grow]
The sync compares generations, because its writes may reach Redis late and out of sequence. A generation is
max(generation + 1, now in ms), computed from the locked row or in the UPDATE itself. `+ 1` puts concurrent edits in
sequence; the clock exceeds the generation of a deleted schedule with the same key, or of a restored backup.

Note [An edit creates no past due point]
`effective_from` is the instant of the last change of the recurrence, the window or `enabled`. Only points after it
belong to the new definition. `replaced_from`, set with it, is the `effective_from` of the last enabled definition that
an edit replaced. If it is later than the `effective_from` that a worker read, another definition came in between.
"""

from collections.abc import Set
from typing import Any

from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Greatest

from ..recurrence.point import utcnow
from .columns import UTCDateTimeField

TIMING_FIELDS = frozenset((
    "kind", "cron", "every", "every_from", "at", "timezone", "dst_gap", "dst_overlap", "start_at", "end_at", "max_runs",
    "enabled",
))  # fmt: skip
#: Whether the code declares the schedule. Saving an instance never changes it.
DECLARATION_FIELDS = ("declared_key", "declaration_gone_at")
BOOKKEEPING_FIELDS = frozenset((
    "generation", "synced_generation", "effective_from", "replaced_from", "updated_at", *DECLARATION_FIELDS,
))  # fmt: skip


def now_generation() -> int:
    """Return the generation of a definition written now: the wall clock in ms."""
    return int(utcnow().timestamp() * 1000)


def build_next_generation() -> Greatest:
    """Return the expression for the generation of a changed row. See Note [Generations only grow]."""
    return Greatest(F("generation") + 1, Value(now_generation()))


def build_effective_from() -> Greatest:
    """Return the expression for `effective_from` of a row whose timing changes now."""
    return Greatest(Value(utcnow(), UTCDateTimeField()), F("effective_from"), F("created_at"))


def build_move() -> dict[str, Any]:
    """Return the columns to set with a change of the timing. See Note [An edit creates no past due point]."""
    return {"replaced_from": F("effective_from"), "effective_from": build_effective_from()}


def is_expression(value: Any) -> bool:
    return hasattr(value, "resolve_expression")


def is_retiming(old: Any, changed: Set[str]) -> bool:
    """Return whether an edit of these fields changes the due points."""
    # `H` in a cron expression is a hash of the name.
    return not changed.isdisjoint(TIMING_FIELDS) or ("name" in changed and "h" in old.cron.lower())


def is_start_moved(old: Any, new: Any) -> bool:
    """Return whether saving `new` over `old` moves `effective_from`; for display before a write."""
    return is_retiming(old, {name for name in (*TIMING_FIELDS, "name") if getattr(old, name) != getattr(new, name)})


def build_version(old: Any, changed: Set[str]) -> dict[str, Any]:
    """Return the columns to set with an edit of these fields of a locked row."""
    now = utcnow()
    version = {name: getattr(old, name) for name in DECLARATION_FIELDS}
    version |= {"generation": max(old.generation + 1, now_generation()), "updated_at": now}
    if not is_retiming(old, changed):
        return {**version, "replaced_from": old.replaced_from, "effective_from": old.effective_from}
    replaced_from = old.effective_from if old.enabled else old.replaced_from
    return {**version, "replaced_from": replaced_from, "effective_from": max(now, old.effective_from, old.created_at)}


def build_move_by(values: dict[str, Any]) -> dict[str, Any]:
    """Return the columns to set with plain `values`, not expressions. See Note [An edit creates no past due point]."""
    changed = Q()
    for name in sorted(TIMING_FIELDS & values.keys()):
        if not is_expression(values[name]):
            changed |= ~Q(**{name: values[name]})
    if "name" in values and not is_expression(values["name"]):  # `H` in a cron expression is a hash of the name
        changed |= ~Q(name=values["name"]) & Q(cron__icontains="h")
    if not changed:
        return {"replaced_from": F("replaced_from"), "effective_from": F("effective_from")}
    return {
        "replaced_from": Case(When(changed & Q(enabled=True), then=F("effective_from")), default=F("replaced_from")),
        "effective_from": Case(When(changed, then=build_effective_from()), default=F("effective_from")),
    }
