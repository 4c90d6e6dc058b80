"""The base of this app's commands: an expected error becomes one line."""

from typing import Any

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq.exceptions import DelayQError


class DelayQCommand(BaseCommand):
    """Fails with one line that says what to do."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        except (DelayQError, ImproperlyConfigured, DatabaseError, ImportError) as error:
            raise CommandError(str(error)) from error
