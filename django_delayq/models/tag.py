"""Tags that users sort schedules by, such as a team or a customer. They affect no run."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .primary import PrimaryModel, PrimaryQuerySet

if TYPE_CHECKING:
    from .schedule import Schedule

MOST_CHARS, MOST_TAGS = 50, 20


def read_tags(text: str) -> list[str]:
    """Return the tags of a text such as `billing, nightly`: unique, in lower case, sorted.

    Raises:
        ValidationError: A tag is too long, or there are too many.
    """
    names = sorted({" ".join(part.split()).lower() for part in text.split(",")} - {""})
    for name in names:
        if len(name) > MOST_CHARS:
            raise ValidationError(
                _("“%(name)s” is longer than %(most)d characters.") % {"name": name, "most": MOST_CHARS}
            )
    if len(names) > MOST_TAGS:
        raise ValidationError(_("%(count)d tags; at most %(most)d.") % {"count": len(names), "most": MOST_TAGS})
    return names


class TagQuerySet(PrimaryQuerySet["Tag"]):
    def put(self, schedule: "Schedule", names: Iterable[str]) -> list[str]:
        """Replace the tags of a schedule; return them in the form of `read_tags`.

        Raises:
            ValidationError: See `read_tags`.
        """
        wanted = read_tags(",".join(names))
        rows = self.filter(schedule=schedule)
        with transaction.atomic(using=self.db):
            rows.exclude(name__in=wanted).delete()
            self.bulk_create([self.model(schedule=schedule, name=name) for name in wanted], ignore_conflicts=True)
        return wanted


class Tag(PrimaryModel):
    #: `lock_to_delete` deletes tags with the schedule; rows that SQL leaves behind do no harm.
    schedule = models.ForeignKey(
        "django_delayq.Schedule", on_delete=models.DO_NOTHING, related_name="tags", db_constraint=False, db_index=False
    )
    name = models.CharField(gettext_lazy("tag"), max_length=MOST_CHARS)

    objects = TagQuerySet.as_manager()

    class Meta:
        verbose_name = gettext_lazy("tag")
        verbose_name_plural = gettext_lazy("tags")
        base_manager_name = "objects"
        default_permissions = ()
        ordering = ("name",)
        constraints = (models.UniqueConstraint(fields=("schedule", "name"), name="delayq_tag_unique"),)
        indexes = (models.Index(fields=("name", "schedule"), name="delayq_tag_name"),)

    def __str__(self) -> str:
        return self.name
