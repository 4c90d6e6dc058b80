"""The admin, and a page that enqueues."""

from django.contrib import admin
from django.http import HttpResponse
from django.urls import path

from shop.tasks import charge

urlpatterns = [
    path("admin/", admin.site.urls),
    path("order/", lambda request: HttpResponse(charge.enqueue(1).id)),
]
