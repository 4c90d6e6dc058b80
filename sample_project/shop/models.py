"""What the shop knows: products, carts, orders, payments, and what its scheduled tasks write."""

from decimal import Decimal

from django.db import models
from django.utils import timezone


class Product(models.Model):
    """Something to buy. `search_text` is written by the task that rebuilds the search index."""

    sku = models.SlugField(unique=True)
    name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    discount_percent = models.PositiveSmallIntegerField(default=0)
    stock = models.PositiveIntegerField(default=0)
    search_text = models.TextField(blank=True, default="", editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def current_price(self) -> Decimal:
        """The price after the discount, in whole cents."""
        return (self.price * (100 - self.discount_percent) / 100).quantize(Decimal("0.01"))


class Cart(models.Model):
    """What somebody is about to buy."""

    class Status(models.TextChoices):
        OPEN = "open"
        ABANDONED = "abandoned"
        REMINDED = "reminded"
        ORDERED = "ordered"

    customer_name = models.CharField(max_length=100)
    email = models.EmailField()
    product = models.ForeignKey(Product, on_delete=models.CASCADE)
    quantity = models.PositiveSmallIntegerField(default=1)
    status = models.CharField(max_length=16, choices=Status, default=Status.OPEN, db_index=True)
    touched_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-touched_at",)

    def __str__(self) -> str:
        return f"{self.customer_name}: {self.quantity} × {self.product_id}"


class Order(models.Model):
    """What somebody has bought."""

    email = models.EmailField()
    total = models.DecimalField(max_digits=10, decimal_places=2)
    placed_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        ordering = ("-placed_at",)

    def __str__(self) -> str:
        return f"order {self.pk}"


class Payment(models.Model):
    """The payment provider's book, as it were: one row per idempotency key, however often it was asked."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE)
    key = models.CharField(max_length=200, unique=True)
    captured_at = models.DateTimeField(default=timezone.now)
    requests = models.PositiveSmallIntegerField(default=1)

    class Meta:
        ordering = ("-captured_at",)

    def __str__(self) -> str:
        return f"payment of order {self.order_id}"


class ExchangeRate(models.Model):
    """How much of a currency one euro buys."""

    currency = models.CharField(max_length=3, unique=True)
    rate = models.DecimalField(max_digits=12, decimal_places=6)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("currency",)

    def __str__(self) -> str:
        return f"{self.currency} {self.rate}"


class DailyReport(models.Model):
    """One day's turnover, where "day" is that of a time zone."""

    day = models.DateField()
    timezone = models.CharField(max_length=64)
    orders = models.PositiveIntegerField()
    revenue = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        ordering = ("-day",)
        constraints = (models.UniqueConstraint(fields=("day", "timezone"), name="shop_one_report_per_day"),)

    def __str__(self) -> str:
        return f"{self.day} ({self.timezone})"
