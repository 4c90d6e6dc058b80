"""The shop's tasks: ordinary `@task` functions. When they run is decided in the admin; one of them begins with what
stands here.

Each can be repeated without harm, because a run whose worker dies is executed again.
"""

import asyncio
import logging
import random
import time
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django.core.mail import EmailMessage, send_mail
from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Greatest
from django.utils import timezone as tz

from django_delayq import periodic

from . import outside
from .mail import send_all
from .models import Cart, DailyReport, ExchangeRate, Order, Product

try:
    from django.tasks import task
except ImportError:  # Django 5.2: the backport
    from django_tasks import task

if TYPE_CHECKING:
    from django_delayq import RunContext

logger = logging.getLogger(__name__)

NAMES = ("Anna", "Bruno", "Chiara", "Dagny", "Emil", "Farah", "Goran", "Hana", "Ilze", "Jānis")
KEPT_CARTS = 500


@task
def simulate_shoppers(visitors: int = 2) -> int:
    """Let some visitors fill a cart, and every third of them buy. Keeps the sample alive.

    Returns how many carts are open.
    """
    for _ in range(visitors):
        name, product = random.choice(NAMES), Product.objects.order_by("?").first()
        if product is None:
            break
        email = f"{name.lower()}@example.org".replace("ā", "a")
        cart = Cart(customer_name=name, email=email, product=product, quantity=random.randint(1, 3))
        if random.random() < 1 / 3:
            cart.status = Cart.Status.ORDERED
            order = Order.objects.create(email=email, total=product.current_price * cart.quantity)
            confirm_order.enqueue(order.pk)
            Product.objects.filter(pk=product.pk).update(stock=Greatest(F("stock") - cart.quantity, 0))
        cart.save()
    for model in (Cart, Order):
        newest = model.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        model.objects.filter(pk__lt=newest - KEPT_CARTS).delete()
    return Cart.objects.filter(status=Cart.Status.OPEN).count()


@task(queue_name="mail")
def confirm_order(order_id: int) -> str:
    """Write to who has ordered. Enqueued for each order: a job, beside the schedules and on the same workers."""
    order = Order.objects.get(pk=order_id)
    send_mail("Thank you for your order", f"Order {order.pk}: {order.total} EUR\n", None, [order.email])
    return order.email


@periodic(
    "*/3 * * * * *",
    name="Abandoned carts",
    kwargs={"idle_seconds": 10},
    description="Declared in the code, beside its task. Here it is paused and tagged; the code says the rest.",
)
@task
def flag_abandoned_carts(idle_seconds: int = 1800) -> int:
    """Mark carts that nobody has touched for a while as abandoned.

    Returns how many were marked. `send_reminders` writes to their owners.
    """
    limit = tz.now() - timedelta(seconds=idle_seconds)
    return Cart.objects.filter(status=Cart.Status.OPEN, touched_at__lt=limit).update(status=Cart.Status.ABANDONED)


@task(takes_context=True)
def send_reminders(context: "RunContext", limit: int = 20, *, subject: str = "You left something in your cart") -> int:
    """Write to the owners of abandoned carts, each cart once.

    Each mail carries the idempotency key of its run in a header: if a worker dies between sending and recording, the
    mail that is sent again can be recognised.
    """
    carts = list(Cart.objects.filter(status=Cart.Status.ABANDONED).select_related("product").order_by("pk")[:limit])
    if not carts:
        return 0
    mails = [
        EmailMessage(
            subject,
            f"Hello {cart.customer_name},\n\n{cart.quantity} × {cart.product.name} still wait for you.\n",
            to=[cart.email],
            headers={"X-Idempotency-Key": f"{context.idempotency_key}/{cart.pk}"},
        )
        for cart in carts
    ]
    send_all(mails)
    return Cart.objects.filter(pk__in=[cart.pk for cart in carts]).update(status=Cart.Status.REMINDED)


@task
def check_stock(threshold: int = 5, *, reorder: int = 40) -> list[str]:
    """Reorder products of which fewer than `threshold` are left.

    Returns their article numbers. (Deliveries in this shop arrive at once.)
    """
    low = list(Product.objects.filter(stock__lt=threshold).values_list("sku", flat=True))
    if low:
        Product.objects.filter(sku__in=low).update(stock=F("stock") + reorder)
        send_mail("Reorder", "\n".join(low) + "\n", None, ["purchasing@example.org"])
    return low


@task
def nightly_report(timezone: str = "UTC", recipients: list[str] | None = None) -> str:
    """Add up yesterday's orders, where yesterday is that of a time zone, and mail the result.

    Repeating it replaces the report of that day.
    """
    zone = ZoneInfo(timezone)
    today = tz.now().astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday = today - timedelta(days=1)
    figures = Order.objects.filter(placed_at__gte=yesterday, placed_at__lt=today).aggregate(
        orders=Count("pk"), revenue=Sum("total", default=Decimal(0))
    )
    report, _ = DailyReport.objects.update_or_create(day=yesterday.date(), timezone=timezone, defaults=figures)
    text = f"{report.day:%A, %d %B %Y} ({timezone}): {report.orders} orders, {report.revenue} EUR"
    send_mail("Nightly report", text + "\n", None, recipients or ["owner@example.org"])
    return text


@task
def refresh_exchange_rates(base: str = "EUR", *, fail_every: int = 3) -> dict[str, str]:
    """Fetch the exchange rates. The service is down at every third call, so this task fails now and then.

    See the traceback in the admin, under Runs.
    """
    rates = outside.fetch_rates(base, fail_every)
    now = tz.now()
    ExchangeRate.objects.bulk_create(
        [ExchangeRate(currency=currency, rate=rate, updated_at=now) for currency, rate in rates.items()],
        update_conflicts=True,
        unique_fields=["currency"],
        update_fields=["rate", "updated_at"],
    )
    return {currency: str(rate) for currency, rate in rates.items()}


@task(takes_context=True)
def capture_payments(context: "RunContext", limit: int = 5, *, timeouts: int = 1) -> int:
    """Capture the payments of new orders. The provider's first answers time out; the next attempt of the run succeeds.

    The provider gets a key for each order that is the same in every attempt, so nothing is captured twice.
    """
    unpaid = Q(payment__isnull=True) | Q(payment__key__startswith=context.idempotency_key)
    orders = Order.objects.filter(unpaid, placed_at__lte=context.due_at).order_by("pk")[:limit]
    for order in orders:
        key = f"{context.idempotency_key}/{order.pk}"
        outside.capture_payment(order, key, times_out=context.attempt <= timeouts)
    return len(orders)


@task
def rebuild_search_index(seconds: float = 2.5) -> int:
    """Rebuild the search index of all products: the slow one. `seconds` is about how long it takes.

    Logs how far it is.
    """
    products = list(Product.objects.all())
    for number, product in enumerate(products, start=1):
        product.search_text = " ".join(sorted({*product.name.lower().split(), *product.sku.split("-")}))
        time.sleep(seconds / len(products))
        if number % 4 == 0:
            logger.info("search index: %d of %d products", number, len(products))
    Product.objects.bulk_update(products, ["search_text"])
    return len(products)


@task
async def ask_suppliers(suppliers: list[str], timeout_seconds: float = 2.0) -> dict[str, int]:
    """Ask all suppliers at the same time what they have in store: an `async def` task."""
    answers = await asyncio.gather(*(outside.ask_supplier(name, timeout_seconds) for name in suppliers))
    return dict(zip(suppliers, answers, strict=True))


@task
def start_flash_sale(sku: str, percent: int, *, minutes: int = 1) -> str:
    """Put one product on sale, and enqueue the end of the sale for its time."""
    if not 0 < percent < 100:
        raise ValueError(f"A discount is between 1 and 99 percent, not {percent}.")
    Product.objects.filter(sku=sku).update(discount_percent=percent)
    until = datetime.now(ZoneInfo("UTC")) + timedelta(minutes=minutes)
    end_flash_sale.using(run_after=until).enqueue(sku)
    send_mail("Flash sale", f"{percent} % off {sku} until {until:%H:%M} UTC\n", None, ["everybody@example.org"])
    return f"{sku} -{percent} %"


@task
def end_flash_sale(sku: str) -> None:
    """Sell one product at its own price again."""
    Product.objects.filter(sku=sku).update(discount_percent=0)


@task
def send_newsletter(subject: str = "News of the week") -> int:
    """Send the newsletter to everybody who has ever bought something."""
    addresses = sorted(set(Order.objects.values_list("email", flat=True)))
    send_all([EmailMessage(subject, "News!\n", to=[address]) for address in addresses])
    return len(addresses)
