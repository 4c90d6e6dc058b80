"""`path("delayq/", include("django_delayq.monitoring.urls"))`: metrics, healthz and readyz."""

from django.urls import path

from . import views

app_name = "delayq"
urlpatterns = [
    path("metrics", views.metrics, name="metrics"),
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
]
