"""The Python of the README and of docs/ is true: examples are run, settings are accepted, what is imported is there.

What a block is: `blocks.py`. The project of the examples has no Redis.
"""

import ast

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from django_delayq import conf
from django_delayq.calls.compat import task_backends

from . import project
from .blocks import Block, read

BLOCKS = read()


def of(*kinds: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind in kinds]


def named(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_the_examples_and_the_tests_of_the_readme_pass(tmp_path):
    project.make(tmp_path, BLOCKS)
    project.play(tmp_path)
    files = {path.name for path in tmp_path.rglob("test_*.py")}
    assert {"test_examples.py", "test_stock.py", "test_reminders.py", "test_orders.py"} <= files


@pytest.mark.parametrize("block", of("settings", "file"), ids=named)
def test_settings_of_the_readme_are_valid(block):
    if block.kind == "file" and block.name != "settings.py":
        return
    values = {"INSTALLED_APPS": (), "CACHES": {}}  # a tuple: some projects have one
    exec(block.text, values)  # noqa: S102 - our own README
    values = {name: value for name, value in values.items() if name in ("CACHES", "DELAYQ", "TASKS")}
    if "default" not in values["CACHES"]:
        values["CACHES"] = {**values["CACHES"], "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    with override_settings(**{"DELAYQ": {}, **values}):
        config = conf.get_config()
        assert config.redis in values["CACHES"]
        ours = [name for name, item in values.get("TASKS", {}).items() if "django_delayq" in item["BACKEND"]]
        problems = [message for alias in ours for message in task_backends[alias].check()]
        assert not problems
        if "default" not in values["CACHES"] or "Dummy" not in values["CACHES"]["default"]["BACKEND"]:
            errors = [message for message in run_checks(tags=["caches"]) if message.is_serious()]
            assert not errors


@pytest.mark.parametrize("block", of("definitions", "script", "excerpt", "file"), ids=named)
def test_what_the_readme_imports_from_here_is_there(block):
    for item in ast.walk(ast.parse(block.text)):
        if isinstance(item, ast.ImportFrom) and (item.module or "").startswith("django_delayq"):
            exec(ast.unparse(item), {})  # noqa: S102 - our own README


def test_every_block_is_of_a_known_kind():
    known = {"file", "doctest", "settings", "fragment", "script", "definitions", "excerpt"}
    assert {block.kind for block in BLOCKS} <= known
    assert len(of("doctest")) >= 5
    assert {block.name for block in of("file")} >= {"settings.py", "shop/tasks.py", "conftest.py"}
