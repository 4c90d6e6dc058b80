"""A real browser, Debian's Chromium, that looks at the admin of a live server under a strict policy."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Played once for each theme, see `.ci/run`.
collect_ignore = [] if os.environ.get("DELAYQ_TEST_THEME") else ["test_themes.py", "test_wagtail.py"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
#: Where the screenshots of all pages are left, to be looked at.
PICTURES = Path(os.environ.get("DELAYQ_TEST_PICTURES", ""))


@pytest.fixture(scope="module")
def chromium(monkeymodule: pytest.MonkeyPatch) -> Iterator[Any]:
    """One browser for a module: while it is there, its event loop stands in this thread. In CI it must be there."""
    packages = ("playwright", "axe_playwright_python")
    if not (CHROMIUM and all(map(importlib.util.find_spec, packages))):
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("A browser is needed: apt install chromium; pip install -e '.[dev]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        monkeymodule.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def monkeymodule() -> Iterator[pytest.MonkeyPatch]:
    """What a module changes, and puts back at its end."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
