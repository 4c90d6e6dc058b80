"""What executions have logged and printed, beside the row that has their outcome; see `capture.py`."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from .primary import PrimaryModel, PrimaryQuerySet
from .run import Run


class Output(PrimaryModel):
    """The last of what one attempt at a run has said, without secrets. Goes with that row.

    Without a constraint in the database: SQL that deletes runs must not be refused for its sake. What that leaves a
    full sweep deletes.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="outputs")
    #: Its number among the attempts as people are shown them: see `history.py`.
    attempt = models.PositiveIntegerField(_("attempt"))
    text = models.TextField(_("output"))

    objects = PrimaryQuerySet.as_manager()

    class Meta:
        verbose_name = _("output")
        verbose_name_plural = _("outputs")
        base_manager_name = "objects"
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=("run", "attempt"), name="delayq_output_of_run"),)

    def __str__(self) -> str:
        return f"attempt {self.attempt}"
