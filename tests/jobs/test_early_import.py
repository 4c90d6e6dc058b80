"""Tasks that are imported before Django's apps are loaded, as an app's `apps.py` may do."""

import os
import subprocess
import sys

from tests.acceptance.support import ROOT

PROGRAM = """
import sys, types
from django.conf import settings
settings.configure(
    SECRET_KEY="x", INSTALLED_APPS=["early.apps.EarlyConfig", "django_delayq"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
    TASKS={"default": {"BACKEND": "django_delayq.backend.DelayQBackend"}},
)
import django
django.setup()
from django_delayq.registry import get_tasks
assert list(get_tasks()) == ["early.tasks.greet"]
print("loaded")
"""
FILES = {
    "__init__.py": "",
    "apps.py": "from django.apps import AppConfig\nfrom early.tasks import greet\n"
    "class EarlyConfig(AppConfig):\n    name = 'early'\n",
    "tasks.py": "from django_delayq.compat import task\n@task\ndef greet(name):\n    pass\n",
}


def test_a_task_may_be_imported_before_the_apps_are_loaded(tmp_path):
    (tmp_path / "early").mkdir()
    for name, text in FILES.items():
        (tmp_path / "early" / name).write_text(text)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr
