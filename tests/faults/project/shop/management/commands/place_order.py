"""What a test starts as a process of its own."""

from django.core.management.base import BaseCommand

from shop.tasks import charge


class Command(BaseCommand):
    """Enqueues, and tells what became of it."""

    def handle(self, **options):
        """Do it."""
        result = charge.enqueue(2)
        result.refresh()
        self.stdout.write(f"{result.status}")
