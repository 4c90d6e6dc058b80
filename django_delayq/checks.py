"""System checks: what can be known to be wrong before anything runs. Opens no connection."""

from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from . import broker, conf


def connect() -> None:
    """Register every check once."""
    checks.register(check_settings, "delayq")


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check the DELAYQ setting and the cache alias that it names."""
    try:
        config = conf.get_config()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint="Correct DELAYQ in the settings.", id="delayq.E001")]
    if not config.mirror:
        return []
    try:
        broker.connect(timeout_seconds=1).connection_pool.disconnect()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint="Correct CACHES or DELAYQ['REDIS'].", id="delayq.E002")]
    return []
