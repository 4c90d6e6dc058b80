"""A real browser, Debian's Chromium, that looks at the admin of a live server under a strict policy."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[dev]'")
pytest.importorskip("axe_playwright_python", reason="pip install -e '.[dev]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
#: Where the screenshots of all pages are left, to be looked at.
PICTURES = Path(os.environ.get("DELAYQ_TEST_PICTURES", ""))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for a module: while it is there, its event loop stands in this thread. In CI it must be there."""
    if not CHROMIUM:
        if os.environ.get("CI"):
            pytest.fail("Chromium is missing: apt install chromium")
        pytest.skip("apt install chromium")
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    with playwright.sync_playwright() as started:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    else:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before
