"""Connects database writes to the mirror. Contains no logic of its own."""

from collections.abc import Sequence
from typing import Any

from django.db.models.signals import post_delete, post_save, pre_save

from .. import conf, sync
from ..models import Schedule, ScheduleQuerySet, Tombstone
from ..models.primary import heirs
from ..signals import definitions_changed, definitions_deleted


def connect() -> None:
    """Connect every receiver once."""
    for model in heirs(Schedule):
        pre_save.connect(_loaded_raw, sender=model, dispatch_uid="django_delayq.raw")
        post_save.connect(_saved, sender=model, dispatch_uid="django_delayq.saved")
        if model._meta.concrete_model is Schedule:  # deleting a row of a child model also deletes its `Schedule`
            post_delete.connect(_deleted, sender=model, dispatch_uid="django_delayq.deleted")
    definitions_changed.connect(_changed, sender=Schedule, dispatch_uid="django_delayq.changed")
    definitions_deleted.connect(_bulk_deleted, dispatch_uid="django_delayq.bulk_deleted")


def _loaded_raw(instance: Schedule, raw: bool, using: str, **kwargs: Any) -> None:
    # loaddata writes dumped rows without Schedule.save(): they become definitions that begin now.
    if raw:
        old = Schedule._base_manager.using(using).filter(pk=instance.pk).values_list("queue", "generation").first()
        if old is not None and old[0] != instance.queue:
            Tombstone.add([(instance.pk, *old)], using=using)
        instance.begin_version()


def _saved(instance: Schedule, using: str, **kwargs: Any) -> None:
    sync.mirror_after_commit([instance.pk], using=using)


def _changed(pks: list[int], using: str, **kwargs: Any) -> None:
    sync.mirror_after_commit(pks, using=using)


def _deleted(instance: Schedule, using: str, origin: object = None, **kwargs: Any) -> None:
    entry = (instance.pk, instance.queue, instance.generation)
    if isinstance(origin, ScheduleQuerySet):
        origin.gone.append(entry)  # the query set announces all of them at its end
    else:
        _bulk_deleted([entry], using)


def _bulk_deleted(entries: Sequence[tuple[int, str, int]], using: str, **kwargs: Any) -> None:
    if entries and conf.get_config().mirror:
        Tombstone.add(entries, using=using)
        sync.sweep_after_commit(len(entries), using=using)
