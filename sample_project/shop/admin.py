"""The shop's own tables in the admin. The schedules' admin comes with django_delayq."""

from django.contrib import admin

from .models import Cart, DailyReport, ExchangeRate, Order, Payment, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "sku", "price", "discount_percent", "stock")
    search_fields = ("name", "sku", "search_text")


@admin.register(Cart)
class CartAdmin(admin.ModelAdmin):
    list_display = ("customer_name", "product", "quantity", "status", "touched_at")
    list_filter = ("status",)
    list_select_related = ("product",)


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "email", "total", "placed_at", "is_paid")
    list_select_related = ("payment",)

    @admin.display(boolean=True, description="paid")
    def is_paid(self, order: Order) -> bool:
        return hasattr(order, "payment")


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):
    list_display = ("order", "key", "captured_at", "requests")
    list_select_related = ("order",)


@admin.register(ExchangeRate)
class ExchangeRateAdmin(admin.ModelAdmin):
    list_display = ("currency", "rate", "updated_at")


@admin.register(DailyReport)
class DailyReportAdmin(admin.ModelAdmin):
    list_display = ("day", "timezone", "orders", "revenue")
