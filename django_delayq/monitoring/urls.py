"""URLs of metrics, healthz and readyz: `path("delayq/", include("django_delayq.monitoring.urls"))`."""

from django.urls import path

from . import views

app_name = "delayq"
urlpatterns = [
    path("metrics", views.metrics, name="metrics"),
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
]
