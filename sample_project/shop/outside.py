"""The services that a shop depends on, simulated: slow now and then, down now and then. Reaches no network."""

import asyncio
import itertools
import random
import time
from decimal import Decimal

from django.db.models import F

from .models import Order, Payment

_calls = itertools.count(1)
_EUR_IN = {"USD": 1.08, "GBP": 0.85, "SEK": 11.3, "PLN": 4.3}


class RateServiceUnavailable(Exception):
    """The service of the exchange rates answered with an error."""


class PaymentTimeout(Exception):
    """The payment provider did not answer in time. Whether it has captured the payment is not known."""


def fetch_rates(base: str, fail_every: int) -> dict[str, Decimal]:
    """Ask for the exchange rates; each `fail_every`th call of this process finds the service down (0 = none)."""
    return _parse(_get(f"https://rates.example.org/v2/latest?base={base}", fail_every))


def _get(url: str, fail_every: int) -> dict[str, float]:
    time.sleep(random.uniform(0.02, 0.08))
    if fail_every and next(_calls) % fail_every == 0:
        raise RateServiceUnavailable(f"503 Service Unavailable: {url} (Retry-After: 4)")
    return {currency: rate * random.uniform(0.99, 1.01) for currency, rate in _EUR_IN.items()}


def _parse(answer: dict[str, float]) -> dict[str, Decimal]:
    return {currency: Decimal(str(rate)).quantize(Decimal("0.000001")) for currency, rate in answer.items()}


def capture_payment(order: Order, key: str, *, times_out: bool) -> None:
    """Capture a payment once for each key, as providers do that take an idempotency key.

    Raises:
        PaymentTimeout: No answer; the payment is captured all the same.
    """
    payment, is_new = Payment.objects.get_or_create(order=order, defaults={"key": key})
    if not is_new:
        Payment.objects.filter(pk=payment.pk).update(requests=F("requests") + 1)
    if times_out:
        raise PaymentTimeout(f"No answer from https://pay.example.org/captures within 2.0 s (Idempotency-Key: {key})")


async def ask_supplier(supplier: str, timeout_seconds: float) -> int:
    """Ask a supplier how much of everything it has."""
    async with asyncio.timeout(timeout_seconds):
        await asyncio.sleep(random.uniform(0.05, 0.4))
    return len(supplier) * 10
