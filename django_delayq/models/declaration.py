"""Which schedules the code declares. Apart from the row that people edit."""

from django.db import models

from .fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class Declaration(PrimaryModel):
    """Written by the sync of declared schedules, in the transaction in which it writes the schedule.

    A schedule without one was made by hand.
    """

    schedule = models.OneToOneField(
        "django_delayq.Schedule", on_delete=models.CASCADE, primary_key=True, related_name="declaration"
    )
    key = models.CharField(max_length=200, unique=True)
    #: When a sync found it gone from the code; null while the code has it.
    gone_at = UTCDateTimeField(null=True)

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"  # so that `schedule.declaration` is read by it

    def __str__(self) -> str:
        return f"declared as {self.key}"
