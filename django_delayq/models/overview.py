"""The admin's overview page as a model, so that the admin lists it among the others."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class NoRows(models.Manager["Overview"]):
    """There is no table to read."""

    def get_queryset(self) -> "models.QuerySet[Overview]":
        return super().get_queryset().none()


class Overview(models.Model):
    """Has no table and no permissions of its own: users with `view_schedule` may view it."""

    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ()
        verbose_name = _("at a glance")
        verbose_name_plural = _("at a glance")

    def __str__(self) -> str:
        return str(self._meta.verbose_name)
