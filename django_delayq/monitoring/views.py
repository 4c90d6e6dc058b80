"""For the web: metrics behind a token, and probes. Include `django_delayq.monitoring.urls`."""

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from .. import conf
from . import health
from .health import PLAIN
from .metrics import MISSING, is_there

NO_TOKEN = "Set DELAYQ['METRICS_TOKEN'], and have it sent as: Authorization: Bearer TOKEN"  # noqa: S105


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Tell how everything stands, to whoever sends METRICS_TOKEN as a bearer token.

    Raises:
        ImproperlyConfigured: `prometheus_client` is missing.
    """
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
    """Do the same for everybody: where a decorator or the address protects it. Raises what `metrics` does."""
    if not is_there():
        raise ImproperlyConfigured(MISSING)
    from .metrics.fleet import told_of_all
    from .metrics.text import CONTENT_TYPE_LATEST

    return HttpResponse(told_of_all(), CONTENT_TYPE_LATEST)


@require_safe
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """Say that this process answers."""
    return HttpResponse("ok\n", PLAIN)


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """Say whether Redis and the database answer: 503 and their names where they do not."""
    page = health.said(health.unready())
    return HttpResponse(page.body, page.content_type, page.status)
