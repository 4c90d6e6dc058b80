"""A ratchet: the size of the package only shrinks. To grow, reduce something else, or raise a limit and say why."""

import dataclasses
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from django.apps import apps

from django_delayq import conf
from django_delayq.conf.alerts import AlertSettings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "django_delayq"
#: What a package of this size is allowed, without the migrations.
MOST_LINES = 27_200
MOST_FILES = 202
MOST_LINES_OF_A_FILE = 400
MOST_SETTINGS = 24
MOST_ROOMS = 16
MOST_MODULES_AT_THE_ROOT = 10
MOST_TABLES = 10
MOST_COMMANDS = 7
MOST_FILES_OF_A_TRIP = 24


def modules() -> dict[Path, int]:
    """Return the modules of the package without migrations, with their lines."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "migrations"]
    return {path: len(path.read_text("utf-8").splitlines()) for path in paths}


def test_the_package_does_not_grow() -> None:
    lines = modules()
    assert sum(lines.values()) <= MOST_LINES
    assert len(lines) <= MOST_FILES
    assert {str(path): count for path, count in lines.items() if count > MOST_LINES_OF_A_FILE} == {}
    assert 90 <= statistics.median(lines.values()) <= 130


def test_there_are_no_more_rooms_settings_tables_and_commands() -> None:
    rooms = [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    assert len(rooms) <= MOST_ROOMS
    assert len([path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]) <= MOST_MODULES_AT_THE_ROOT
    models = apps.get_app_config("django_delayq").get_models(include_auto_created=True)
    assert len([model for model in models if model._meta.managed and not model._meta.proxy]) <= MOST_TABLES
    assert len(list((PACKAGE / "management/commands").glob("delayq_*.py"))) <= MOST_COMMANDS
    fields = [*dataclasses.fields(conf.Config), *dataclasses.fields(AlertSettings)]
    settings = [field for field in fields if "read" in field.metadata and field.name != "alerts"]
    assert 0 < len(settings) <= MOST_SETTINGS


def test_a_due_point_passes_few_files() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.trips"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=120, check=True)
    point = re.search(r"^a due point +(\d+)", done.stdout, re.MULTILINE)
    assert point is not None
    assert int(point[1]) <= MOST_FILES_OF_A_TRIP, done.stdout
