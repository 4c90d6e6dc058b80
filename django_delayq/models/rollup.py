"""What was done in a minute, or in an hour: the sums of `counters.py`, once they have left Redis."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import UTCDateTimeField
from .primary import PrimaryModel, PrimaryQuerySet


class Rollup(PrimaryModel):
    """What was counted of one task in `seconds` from `at` on. See `counters.py`, Note [Counters].

    `seconds` is 60 or, for what is older than two days, 3600. `counts` is a `counters.Tally`.
    """

    at = UTCDateTimeField()
    seconds = models.PositiveIntegerField()
    kind = models.CharField(max_length=8)
    queue = models.CharField(max_length=64)
    task = models.CharField(max_length=255, blank=True)
    counts = models.JSONField(default=dict)

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        verbose_name = _("rollup")
        verbose_name_plural = _("rollups")
        constraints = (
            models.UniqueConstraint(fields=("seconds", "at", "kind", "queue", "task"), name="delayq_rollup_one"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.task} in {self.queue}, {self.seconds} s from {self.at:%Y-%m-%d %H:%M} UTC"
