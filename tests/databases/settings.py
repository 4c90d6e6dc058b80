"""Settings with three databases: accounts in `default`, the app in `schedules`, and a replica of that one.

Used by tests/databases/several, which a process of its own plays; see tests/databases/test_several.py.
"""

import json
import os
from typing import Any

from tests import settings as usual
from tests.settings import *  # noqa: F403 - all but what follows

INSTALLED_APPS = [app for app in usual.INSTALLED_APPS if app != "tests.faults"]  # it refers to accounts


def _database(alias: str) -> dict[str, Any]:
    """Return a database beside the usual one, on the same server or in the same folder."""
    database = dict(usual.DATABASES["default"])
    if database["ENGINE"].endswith("sqlite3"):
        names = {"NAME": str(usual.SCRATCH / f"{alias}.sqlite3"), "TEST": {"NAME": str(usual.SCRATCH / f"t-{alias}")}}
    else:
        names = {"NAME": alias, "TEST": {"NAME": f"test_several_{os.getpid()}_{alias}"}}
    return {**database, **names}


DATABASES = {alias: _database(alias) for alias in ("default", "schedules", "replica")}
# Worker processes work on the test databases, whose names only the test run knows.
for _alias, _name in json.loads(os.environ.get("DELAYQ_TEST_DATABASES", "{}")).items():
    DATABASES[_alias]["NAME"] = _name
DATABASE_ROUTERS = ["tests.databases.routers.AppWithReplica"]
