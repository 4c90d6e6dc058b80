"""System checks: what can be known to be wrong before anything runs. Opens no connection."""

from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from . import broker, conf, registry


def connect() -> None:
    """Register every check once."""
    checks.register(check_settings, "delayq")
    checks.register(check_tasks, "delayq")


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check the DELAYQ setting and the cache alias that it names."""
    try:
        config = conf.get_config()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), hint="Correct DELAYQ in the settings.", id="delayq.E001")]
    found: list[checks.CheckMessage] = []
    if config.history_days is not None:
        hint = "Delete old rows yourself: Run.objects.finished().filter(finished_at__lt=…).delete()"
        found.append(checks.Warning("DELAYQ['HISTORY_DAYS'] has no effect yet.", hint=hint, id="delayq.W001"))
    if not config.mirror:
        return found
    try:
        broker.connect(timeout_seconds=1).connection_pool.disconnect()
    except ImproperlyConfigured as error:
        found.append(checks.Error(str(error), hint="Correct CACHES or DELAYQ['REDIS'].", id="delayq.E002"))
    return found


def check_tasks(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check that the task modules of the installed apps can be imported: the workers and the admin do."""
    try:
        registry.get_tasks()
    except ImproperlyConfigured:
        return []  # the settings' own check says it
    except Exception as error:
        message = f"A module of tasks cannot be imported: {type(error).__name__}: {error}"
        return [checks.Error(message, hint="Import it in manage.py shell to see where.", id="delayq.E003")]
    return []
