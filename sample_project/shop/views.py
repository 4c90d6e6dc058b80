"""The only page of the shop: what its schedules have done so far, and the way to the admin."""

from django.conf import settings
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from django_delayq.models import Run

from .models import Cart, ExchangeRate, Order


def home(request: HttpRequest) -> HttpResponse:
    """Show some figures. Reload to see them move."""
    carts = Cart.objects.aggregate(
        open=Count("pk", Q(status=Cart.Status.OPEN)),
        abandoned=Count("pk", Q(status=Cart.Status.ABANDONED)),
        reminded=Count("pk", Q(status=Cart.Status.REMINDED)),
    )
    orders = Order.objects.aggregate(placed=Count("pk"), paid=Count("payment"))
    mails = settings.MAIL_PATH
    context = {
        "carts": carts,
        "orders": orders,
        "rates": ExchangeRate.objects.all(),
        "mail_files": sum(1 for _ in mails.iterdir()) if mails.is_dir() else 0,
        "mail_path": mails,
        "runs": Run.objects.order_by("-pk")[:10],
    }
    return render(request, "shop/home.html", context)
