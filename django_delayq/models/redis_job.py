"""Jobs that Redis holds, or that are dead in the database, as a model for Django's permissions and the admin.

Has no table and reads nothing.
"""

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _


class NoRows(models.Manager[Any]):
    """Finds nothing and asks no database: whoever goes through all models (`dumpdata`) need not know that."""

    def get_queryset(self) -> models.QuerySet[Any]:
        """Return no rows."""
        return super().get_queryset().none()


class RedisJob(models.Model):
    """The id of a job. Permissions: to view, to change (cancel, run now, retry), to delete dead ones."""

    id = models.CharField(primary_key=True, max_length=63)
    #: What people call it.
    title = ""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "change", "delete")
        permissions = (("view_job_arguments", "Can see the arguments of jobs"),)
        verbose_name = _("job")
        verbose_name_plural = _("jobs")

    def __str__(self) -> str:
        return self.title or self.id
