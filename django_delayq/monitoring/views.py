"""Views: metrics that require a token, and probes. Include `django_delayq.monitoring.urls`."""

from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from .. import conf
from . import health
from .health import PLAIN

NO_TOKEN = "Set DELAYQ['METRICS_TOKEN'], and have it sent as: Authorization: Bearer TOKEN"  # noqa: S105


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the gauges, if the request has METRICS_TOKEN as its bearer token. Needs `prometheus_client`."""
    token = conf.get_config().metrics_token
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if not (token and scheme.lower() == "bearer" and constant_time_compare(given.strip(), token)):
        response = HttpResponse("" if token else NO_TOKEN, PLAIN, status=401 if token else 403)
        response["WWW-Authenticate"] = "Bearer"
        return response
    return open_metrics(request)


@require_safe
@never_cache
def open_metrics(request: HttpRequest) -> HttpResponse:
    """Return the gauges without a token: protect it by a decorator or by its address."""
    from .metrics import CONTENT_TYPE_LATEST, render_gauges

    return HttpResponse(render_gauges(), CONTENT_TYPE_LATEST)


@require_safe
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """Return 200: this process answers."""
    return HttpResponse("ok\n", PLAIN)


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """Return 200 if Redis and the database answer, else 503 with the names of those that do not."""
    page = health.create_page(health.find_unready())
    return HttpResponse(page.body, page.content_type, page.status)
