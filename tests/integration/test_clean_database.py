"""What the tests' own `flush` leaves of the database."""

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command

from django_delayq.models import Run
from tests.integration.admin_pages import client_for, make

pytestmark = pytest.mark.django_db(transaction=True)


def filled():
    """Return the models of which there are rows."""
    models = [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]
    return {model for model in models if model._base_manager.exists()}


def test_a_test_that_commits_leaves_nothing_but_what_every_test_finds():
    kept = {model: list(model.objects.order_by("pk").values()) for model in (ContentType, Permission)}
    assert filled() == set(kept)
    schedule = make()
    Run.objects.create(
        schedule=schedule, schedule_name="s", task=schedule.task, generation=1, due_at=schedule.created_at
    )
    client_for("view_schedule")
    assert len(filled()) >= 6
    call_command("flush", verbosity=0, interactive=False, reset_sequences=False, inhibit_post_migrate=False)
    assert filled() == set(kept)
    assert {model: list(model.objects.order_by("pk").values()) for model in kept} == kept
