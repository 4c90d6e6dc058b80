"""Due points as numbers since 1970. A naive instant raises ValueError. Only `utcnow` reads a clock."""

from datetime import UTC, datetime, timedelta

from ..exceptions import InvalidRecurrence

#: Seconds of a day.
DAY = 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND, MILLISECOND = timedelta(microseconds=1), timedelta(milliseconds=1)


def utcnow() -> datetime:
    """Return the current instant in UTC. A default for model fields that is aware even if USE_TZ is off."""
    return datetime.now(UTC)


def to_utc(instant: datetime | None, name: str = "instant", *, field: str = "") -> datetime:
    """Return an aware datetime in UTC. Raises ValueError for other values, InvalidRecurrence if `field` is given."""
    if isinstance(instant, datetime):
        if instant.tzinfo is UTC:
            return instant
        if instant.utcoffset() is not None:
            return instant.astimezone(UTC)
        text = f"{name} must be an aware datetime; {instant!r} has no time zone. Add one, such as tzinfo=UTC."
    else:
        text = f"{name} must be an aware datetime, not {instant!r}."
    raise InvalidRecurrence(text, field=field) if field else ValueError(text)


def to_micros(instant: datetime) -> int:
    return (to_utc(instant) - EPOCH) // MICROSECOND


def to_seconds(instant: datetime) -> int:
    """Return the whole seconds since 1970, rounded down."""
    return to_micros(instant) // 1_000_000


def from_seconds(value: int | None) -> datetime | None:
    """Return the instant in UTC; None for None, and outside the years 1 to 9999."""
    try:
        return None if value is None else EPOCH + timedelta(0, value)
    except OverflowError:
        return None


def to_ms(instant: datetime) -> int:
    """Return milliseconds since 1970, rounded up, so that nothing starts early."""
    return -((EPOCH - to_utc(instant)) // MILLISECOND)


def try_from_ms(value_ms: int | None) -> datetime | None:
    """Return the instant of these ms since 1970; None for None, and outside the calendar (corrupt data in Redis)."""
    try:
        return None if value_ms is None else from_ms(value_ms)
    except (OverflowError, ValueError):
        return None


def from_ms(value: int) -> datetime:
    """Return the instant of milliseconds since 1970, in UTC; OverflowError outside the years 1 to 9999."""
    return EPOCH + timedelta(0, 0, 0, value)
