"""The test project with the schedulers that others come from. The environment is in `.ci/run`.

rq-scheduler needs the package `crontab`, django-celery-beat `python-crontab`, both the module `crontab`: so they are
played one after the other.
"""

from importlib.util import find_spec

from tests.settings import *  # noqa: F403 - all but what follows
from tests.settings import INSTALLED_APPS

OTHERS = ("django_celery_beat", "django_q", "scheduler", "django_apscheduler")
INSTALLED_APPS = [*INSTALLED_APPS, *(name for name in OTHERS if find_spec(name))]
TIME_ZONE = "Europe/Riga"
Q_CLUSTER = {"name": "shop", "orm": "default", "timeout": 60, "retry": 120}
SCHEDULER_QUEUES = {"default": {"URL": "redis://127.0.0.1:1/0"}}
