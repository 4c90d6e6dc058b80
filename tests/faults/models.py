"""A model of a project's own on top of `Schedule`, for deletions that come from elsewhere."""

from django.conf import settings
from django.db import models

from django_delayq.models import Schedule

from . import broken  # noqa: F401 - fails where a process is to


class OwnedSchedule(Schedule):
    """A schedule that goes when its owner goes."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)


class NamedSchedule(Schedule):
    """The same rows under another name."""

    class Meta:
        proxy = True
