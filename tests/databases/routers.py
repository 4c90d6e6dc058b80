"""Routers as projects write them."""

from typing import Any

APP = "django_delayq"


class AppWithReplica:
    """Writes the app to `schedules` and reads it from `replica`; everything else is in `default`."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        """Return the primary of the app."""
        return "schedules" if model._meta.app_label == APP else "default"

    def db_for_read(self, model: Any, **hints: Any) -> str:
        """Return the replica of the app."""
        return "replica" if model._meta.app_label == APP else "default"

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        """Make the app's tables in its own databases, and only there."""
        return (db != "default") if app_label == APP else (db == "default")


class RunsElsewhere:
    """Keeps schedules and their runs separate: refused."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        """Return another alias for runs."""
        return "history" if model._meta.label == "django_delayq.Run" else None
