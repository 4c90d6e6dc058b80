"""What things cost, as tables; nothing here asserts anything about time."""

import os


def set_up() -> None:
    """Set Django and the database up with the suite's settings and a server, under a prefix of this process."""
    from django_delayq.embedded import get_redis_url

    get_redis_url()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    os.environ["DELAYQ_TEST_PREFIX"] = f"bench{os.getpid()}"
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
