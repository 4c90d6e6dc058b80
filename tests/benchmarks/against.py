"""The schedule lane of this code against that of a former commit, in turns and in both orders, on one machine.

Run from the project's root: `python -m tests.benchmarks.against COMMIT [--rounds N] [--points N]`. Uses SQLite, or a
database of its own for each run on the server of DATABASE_URL (PostgreSQL). Prints a table; asserts nothing about time.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).parents[2]


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Have the files of a commit in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        files = subprocess.run(["git", "archive", commit], cwd=HERE, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=folder, check=True, input=files)
        yield Path(folder)


@contextmanager
def database() -> Iterator[dict[str, str]]:
    """Have an empty database; return what the environment says of it."""
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        yield {}
        return
    import dj_database_url
    import psycopg

    given = dj_database_url.parse(url)
    place = {"host": given["HOST"] or given["OPTIONS"].get("host"), "port": given["PORT"] or None}
    place |= {"user": given["USER"], "password": given["PASSWORD"] or None}
    name = f"delayq_bench_{os.getpid()}"
    with psycopg.connect(dbname=given["NAME"], autocommit=True, **place) as server:
        server.execute(f"CREATE DATABASE {name}")
        try:
            yield {"DATABASE_URL": urlsplit(url)._replace(path=f"/{name}").geturl()}
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def points_per_second(tree: Path, points: int) -> float:
    """Return what the benchmark `throughput` of a tree says."""
    command = [sys.executable, "-m", "tests.benchmarks.throughput", "--points", str(points)]
    with database() as named:
        environment = {**os.environ, **named, "PYTHONPATH": str(tree)}
        done = subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True, text=True)
    found = re.search(r"([\d,]+) points/s", done.stdout)
    assert found, done.stdout
    return float(found[1].replace(",", ""))


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--points", type=int, default=10_000)
    options = parser.parse_args()
    then, now = [], []
    with checkout(options.commit) as tree:
        for number in range(options.rounds):
            turns = [(tree, then), (HERE, now)]
            for place, speeds in turns if number % 2 else reversed(turns):
                speeds.append(points_per_second(place, options.points))
            print(f"round {number + 1}: {then[-1]:7,.0f} then, {now[-1]:7,.0f} now", flush=True)
    ratios = [a / b for a, b in zip(now, then, strict=True)]
    print(f"median:  {statistics.median(then):7,.0f} then, {statistics.median(now):7,.0f} now")
    print(f"{statistics.median(ratios):.2f} times as many points a second as {options.commit}")


if __name__ == "__main__":
    main()
