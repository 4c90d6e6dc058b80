"""Which database, and whether it is ready."""

from django.db import connections, router

from ..exceptions import MissingTables
from ..models import Schedule


def database() -> str:
    """Return the alias of the database that holds schedules, states and runs together."""
    return router.db_for_write(Schedule)


def check_tables() -> None:
    """Make sure that the migrations were run.

    Raises:
        MissingTables: They were not; says what to do.
    """
    using = database()
    if Schedule._meta.db_table not in connections[using].introspection.table_names():
        raise MissingTables(f"The database {using!r} has no tables of django_delayq. Run: manage.py migrate")
