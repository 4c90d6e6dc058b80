"""The models of other installed apps. Asks the registry of apps, imports nothing."""

from typing import Any

from django.apps import apps

from .entry import UnreadableSource


def model(app: str, name: str) -> Any:
    """Return a model of another app.

    Raises:
        UnreadableSource: The app is not installed, or has no such model.
    """
    try:
        return apps.get_model(app, name)
    except LookupError:
        raise UnreadableSource(
            f"Its tables are read by its own models: leave {app!r} in INSTALLED_APPS until everything has come over."
        ) from None
