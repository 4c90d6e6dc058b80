"""The rows of the demo: products, an admin user, schedules of all kinds. Creating them again changes nothing but the
one-off sale, which is set to a time to come.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.contrib.auth import get_user_model

from django_delayq.models import Schedule
from shop.models import Product

ADMIN = "admin"
PRODUCTS = (
    ("tea-green", "Green tea", "4.90", 60),
    ("tea-black", "Black tea", "4.50", 8),
    ("tea-mint", "Peppermint tea", "3.90", 35),
    ("coffee-dark", "Dark roast coffee", "8.90", 20),
    ("coffee-light", "Light roast coffee", "9.40", 15),
    ("cup-small", "Small cup", "6.00", 12),
    ("cup-large", "Large cup", "7.50", 6),
    ("pot-glass", "Glass teapot", "24.00", 7),
    ("kettle", "Kettle", "39.00", 9),
    ("honey-lime", "Lime blossom honey", "5.20", 30),
    ("biscuit-oat", "Oat biscuits", "2.80", 80),
    ("filter-paper", "Paper filters", "1.90", 120),
)


def seconds(number: float) -> timedelta:
    """Return a duration."""
    return timedelta(seconds=number)


#: By name; another one is declared in shop/tasks.py. The defaults of `Schedule` do for all that is not said here.
SCHEDULES: dict[str, dict[str, Any]] = {
    "Shoppers (simulation)": {
        "task": "shop.tasks.simulate_shoppers",
        "kind": "every",
        "every": seconds(1),
        "kwargs": {"visitors": 1},
        "description": "A fixed rate: every second, counted from due point to due point.",
    },
    "Stock check": {
        "task": "shop.tasks.check_stock",
        "kind": "every",
        "every": seconds(2),
        "kwargs": {"threshold": 5},
    },
    "Reminder mails": {
        "task": "shop.tasks.send_reminders",
        "kind": "every",
        "every": seconds(5),
        "every_from": "finish",
        "kwargs": {"limit": 50},
        "queue": "mail",
        "description": "A fixed delay: five seconds after the end of the last run. In a queue of its own.",
    },
    "Exchange rates": {
        "task": "shop.tasks.refresh_exchange_rates",
        "kind": "cron",
        "cron": "*/4 * * * * *",
        "description": "Fails at every third run, without another attempt. The runs show the traceback.",
    },
    "Payments": {
        "task": "shop.tasks.capture_payments",
        "kind": "every",
        "every": seconds(7),
        "max_attempts": 3,
        "backoff": seconds(1),
        "description": "The first attempt times out, the second succeeds. Nothing is captured twice.",
    },
    "Supplier stock": {
        "task": "shop.tasks.ask_suppliers",
        "kind": "every",
        "every": seconds(3),
        "args": [["Teehaus Nord", "Kafejnīca", "Honey & Co"]],
        "description": "An async task.",
    },
    "Search index": {
        "task": "shop.tasks.rebuild_search_index",
        "kind": "every",
        "every": seconds(2),
        "args": [2.5],
        "grace": seconds(0.25),
        "description": "Takes longer than its interval, on purpose: what comes due meanwhile is skipped (overlap).",
    },
    "Nightly report": {
        "task": "shop.tasks.nightly_report",
        "kind": "cron",
        "cron": "30 0 * * *",
        "timezone": "Europe/Riga",
        "kwargs": {"timezone": "Europe/Riga"},
        "missed": "all",
        "description": "Half past midnight in Riga, in summer and in winter.",
    },
    "Midday figures": {
        "task": "shop.tasks.nightly_report",
        "kind": "cron",
        "cron": "0 12 * * MON-FRI",
        "timezone": "America/New_York",
        "kwargs": {"timezone": "America/New_York", "recipients": ["new-york@example.org"]},
        "queue": "mail",
    },
    "Newsletter": {
        "task": "shop.tasks.send_newsletter",
        "kind": "cron",
        "cron": "0 9 * * MON#1",
        "timezone": "Europe/Riga",
        "queue": "mail",
        "enabled": False,
        "pause_reason": "The new template is not ready yet.",
    },
}
SALE = "Flash sale"
CLOCK_CHANGE = "Clock change"


def load(*, sale_in_seconds: float) -> None:
    """Create what is missing. What somebody has edited stays as it is, but for the sale's time."""
    for sku, name, price, stock in PRODUCTS:
        Product.objects.get_or_create(sku=sku, defaults={"name": name, "price": Decimal(price), "stock": stock})
    for name, values in SCHEDULES.items():
        Schedule.objects.get_or_create(name=name, defaults=values)
    if not Schedule.objects.filter(name=CLOCK_CHANGE).exists():
        Schedule.objects.create(name=CLOCK_CHANGE, **clock_change(datetime.now(UTC)))
    at = (datetime.now(UTC) + seconds(sale_in_seconds)).replace(microsecond=0)
    sale, is_new = Schedule.objects.get_or_create(
        name=SALE,
        defaults={
            "task": "shop.tasks.start_flash_sale",
            "kind": "once",
            "at": at,
            "kwargs": {"sku": "pot-glass", "percent": 20},
            "description": "Once, some seconds after the start of the demo.",
        },
    )
    if not is_new and sale.kind == Schedule.Kind.ONCE:
        sale.at = at
        sale.save()


def clock_change(now: datetime) -> dict[str, Any]:
    """Return a schedule at a local time that does not exist, or comes twice, when some zone next changes its clock."""
    zone, before, after = next_change(now)
    shift = after.replace(tzinfo=None) - before.replace(tzinfo=None)  # of the clock, over one second
    first = min(before.replace(tzinfo=None), after.replace(tzinfo=None))
    inside = first + abs(shift) / 2 + seconds(1)
    return {
        "task": "shop.tasks.nightly_report",
        "kind": "cron",
        "cron": f"{inside.minute} {inside.hour} {inside.day} {inside.month} *",
        "timezone": zone,
        "kwargs": {"timezone": zone},
        "dst_overlap": "twice",
        "description": "A time that the clock of this zone jumps over, or shows twice: see its next due points.",
    }


def next_change(now: datetime) -> tuple[str, datetime, datetime]:
    """Return the zone that changes its clock next, with the last local second before and the first after it."""
    zones = [ZoneInfo(name) for name in sorted(available_timezones()) if "/" in name and not name.startswith("Etc/")]
    begin = now.replace(microsecond=0)
    for _day in range(400):
        end = begin + timedelta(days=1)
        for zone in zones:
            if _offset(zone, begin) != _offset(zone, end):
                last, first = begin, end
                while first - last > seconds(1):
                    middle = (last + (first - last) / 2).replace(microsecond=0)
                    last, first = (middle, first) if _offset(zone, middle) == _offset(zone, begin) else (last, middle)
                return zone.key, last.astimezone(zone), first.astimezone(zone)
        begin = end
    raise LookupError("No zone changes its clock within a year.")


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta | None:
    return instant.astimezone(zone).utcoffset()


def ensure_admin() -> bool:
    """Create the admin user with a well-known password. Return False if there is one: its password is not touched."""
    users = get_user_model()._default_manager
    if users.filter(**{get_user_model().USERNAME_FIELD: ADMIN}).exists():
        return False
    users.create_superuser(ADMIN, "admin@example.org", ADMIN)  # type: ignore[attr-defined]
    return True
