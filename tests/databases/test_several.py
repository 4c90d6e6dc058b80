"""The app in a database of its own, with a replica for reads: the tests in `several`, under settings of their own."""

import os
import subprocess
import sys

from tests.acceptance.support import PATIENCE_SECONDS, ROOT


def test_everything_works_where_a_router_sends_the_app_to_another_database_and_its_reads_to_a_replica():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    arguments = ["-q", "-p", "no:cacheprovider", "--ds=tests.databases.settings", "tests/databases/several"]
    played = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=5 * PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    print(played.stdout[-8000:], played.stderr[-2000:])
    assert played.returncode == 0, "see what it printed"
    assert " passed" in played.stdout
    assert " skipped" not in played.stdout
