"""The test project with two more backends of Django's tasks framework: django-tasks-db and django-tasks-rq."""

import os

from tests.settings import *  # noqa: F403 - all but what follows
from tests.settings import INSTALLED_APPS
from tests.settings import TASKS as OURS

INSTALLED_APPS = [*INSTALLED_APPS, "django_tasks_db", "django_rq"]
TASKS = {
    **OURS,  # so that what is handed over are tasks of our class
    "rows": {"BACKEND": "django_tasks_db.DatabaseBackend"},
    "rq": {"BACKEND": "django_tasks_rq.RQBackend"},
    "deadly": {"BACKEND": "tests.handover.backends.DeadlyBackend"},
}
RQ_QUEUES = {"default": {"URL": os.environ.get("DELAYQ_TEST_RQ_URL", "redis://127.0.0.1:1/0")}}
