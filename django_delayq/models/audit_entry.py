"""Django's log of the admin as a model of this app. Imported only where `django.contrib.admin` is installed."""

from django.contrib.admin.models import LogEntry
from django.utils.translation import gettext_lazy as _


class AuditEntry(LogEntry):
    """Has no permissions of its own: users with `view_schedule` may view it."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
