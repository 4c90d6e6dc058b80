"""A project made of the README's blocks, in a folder of its own, with a test that runs the examples in order."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import django

from django_delayq.calls.compat import task

from .blocks import ROOT, Block

SETTINGS = """
from pathlib import Path

SECRET_KEY = "only for tests"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ("django.contrib.auth", "django.contrib.contenttypes", "shop")
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""
#: What the README's tasks call, and what it mentions without showing it.
TASKS = """
from types import SimpleNamespace

from django.tasks import task

bank = SimpleNamespace(charge=lambda order, key: f"charged {order}")


def mail_receipt(order):
    return None
"""
EXAMPLES = """
import doctest
import json
from datetime import UTC, datetime
from pathlib import Path

BLOCKS = json.loads(Path(__file__).with_name("blocks.json").read_text())
#: A Sunday.
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_the_examples_in_order(delayq):
    delayq.start_at(NOON)
    names, finder, shown = {}, doctest.DocTestParser(), []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for page, line, text in BLOCKS:
        delayq.run_due()  # between two blocks, a worker
        if ">>>" not in text:
            exec(compile("\\n" * (line - 1) + text, page, "exec"), names)
            continue
        example = finder.get_doctest(text, names, page, page, line - 1)
        runner.run(example, out=shown.append, clear_globs=False)
        names.update(example.globs)
    assert not shown, "".join(shown)
    assert runner.tries > 10
"""


def make(folder: Path, blocks: list[Block]) -> None:
    """Write the project. What this Django does not know yet is left out."""
    files = {
        "settings.py": SETTINGS,
        "shop/__init__.py": "",
        "shop/tasks.py": for_this_django(TASKS),
        "test_examples.py": EXAMPLES,
    }
    for block in blocks:
        if block.kind == "file" and not _is_too_new(block):
            files[block.name] = f"{files.get(block.name, '')}\n\n{for_this_django(block.text)}"
    examples = [
        (block.page, block.line, for_this_django(block.text)) for block in blocks if block.kind in ("doctest", "script")
    ]
    files["blocks.json"] = json.dumps(examples)
    write(folder, files)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their names."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def play(folder: Path, *options: str) -> str:
    """Return what the project's own tests say, which must pass."""
    paths = filter(None, (str(folder), str(ROOT), os.environ.get("PYTHONPATH")))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DELAYQ_"))}
    env |= {"PYTHONPATH": os.pathsep.join(paths), "DJANGO_SETTINGS_MODULE": "settings"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "."]
    ended = subprocess.run([*command, *options], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _is_too_new(block: Block) -> bool:
    """Options at the decorator came with Django 6.1 and version 0.10 of the backport."""
    takes_options = any(item.kind is item.VAR_KEYWORD for item in inspect.signature(task).parameters.values())
    return "@task(max_attempts" in block.text and not takes_options


def for_this_django(text: str) -> str:
    return text if django.VERSION >= (6, 0) else text.replace("from django.tasks import", "from django_tasks import")
