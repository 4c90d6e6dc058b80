"""The wheel holds everything that the source tree has, and works without it."""

import subprocess
import sys
import venv
import zipfile

import pytest

from tests.acceptance.support import ROOT

PROJECT = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin",
                    "django.contrib.messages", "django.contrib.sessions", "django_delayq"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
    SECRET_KEY="x", STATIC_URL="/static/", USE_TZ=True,
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
)
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.staticfiles import finders
from django.template.loader import get_template
from django_delayq import RunContext, index
from django_delayq.index import scripts
from django_delayq.models import Run, Schedule
assert [scripts.load(name) for name in scripts.NAMES]
assert Schedule.objects.count() == Run.objects.count() == 0
print("works", RunContext.__name__, index.__file__)
"""


@pytest.mark.wheel
def test_the_wheel_is_complete_and_runs_a_migration_in_a_clean_environment(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "django_delayq"
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - names == set()
    assert any(name.endswith(".lua") for name in names)
    assert "django_delayq/py.typed" in names
    assert not any(name.startswith(("tests/", "sample_project/")) for name in names)

    home = tmp_path / "project"
    home.mkdir()
    venv.create(home / "venv", with_pip=True)
    python = home / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, cwd=home)
    (home / "project.py").write_text(PROJECT)
    done = subprocess.run([python, "-I", "project.py"], cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("works RunContext")
    assert str(ROOT) not in done.stdout
