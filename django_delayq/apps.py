"""The app's configuration. Connects signal receivers and registers checks; starts nothing and connects to no server."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DelayQConfig(AppConfig):
    name = "django_delayq"
    label = "django_delayq"
    verbose_name = _("Schedules")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401 - registers them
        from .calls import side_channels
        from .sources import declared
        from .sync import after_commit

        side_channels.guard_loggers()
        after_commit.connect()
        declared.connect()
