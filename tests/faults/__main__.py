"""`python -m tests.faults --minutes 20 --workers 6`: the long form. Exits with 1 where anything is missing, doubled,
recovered too late, or grows.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import django


def main() -> int:
    """Set up the test database, soak, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--lease", type=float, default=5, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ["DELAYQ_TEST_OPTIONS"] = json.dumps({"PREFIX": "soak", "SHARDS": 4})
    django.setup()
    from django.test.utils import setup_databases, setup_test_environment, teardown_databases

    setup_test_environment(debug=False)
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        return _soak(options)
    finally:
        teardown_databases(databases, verbosity=0)


def _soak(options: argparse.Namespace) -> int:
    from tests.faults.harness.table import lines
    from tests.faults.soak.arena import arena
    from tests.faults.soak.run import soak
    from tests.faults.soak.story import slowest, stories

    print(f"seed {options.seed}, {options.workers} workers, {options.schedules} schedules, lease {options.lease:g} s")
    with tempfile.TemporaryDirectory(prefix="dqsoak", ignore_cleanup_errors=True) as folder, arena(
        Path(folder), workers=options.workers, schedules=options.schedules, lease_seconds=options.lease,
        seed=options.seed,
    ) as place:  # fmt: skip
        outcome = soak(place, options.minutes * 60)
        print(*stories(place, outcome.verdict), *slowest(place), sep="\n")
    print(*lines(outcome.rows()), *map(str, outcome.growths), sep="\n")
    print(f"the machine woke a sleeping thread up to {outcome.stall * 1000:.0f} ms late; seed {options.seed}")
    complaints = outcome.complaints(timed=True)
    print("WRONG: " + "\n       ".join(complaints) if complaints else "Nothing is missing, nothing doubled.")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
