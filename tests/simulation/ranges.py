"""Plays ranges of seeds in several processes; see __main__.py."""

import argparse
import json
import os
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path

CHUNK = 100


def main() -> int:
    """Play, with a line of progress a chunk."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", default="0-50000", help="from-to; default %(default)s")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--notes", type=Path, default=Path(tempfile.gettempdir()) / "delayq-simulation.jsonl")
    parser.add_argument("--mutants", action="store_true")
    options = parser.parse_args()
    first, end = map(int, options.seeds.split("-"))
    signal.signal(signal.SIGTERM, _end)
    how = {"max_workers": options.processes, "mp_context": get_context("spawn"), "initializer": _prepare}
    with ProcessPoolExecutor(**how) as pool:
        return _mutants(pool, end) if options.mutants else _seeds(pool, first, end, options.notes)


def _end(*_: object) -> None:
    """End with the processes that play: they would play on what they were given."""
    for child in active_children():
        child.kill()
    os._exit(1)


def _seeds(pool, first: int, end: int, notes: Path) -> int:
    done = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    known = {item["first"] for item in done if not item["broken"]}
    todo = [at for at in range(first, end, CHUNK) if at not in known]
    print(f"{len(todo)} of {len(range(first, end, CHUNK))} chunks of {CHUNK} seeds to play; notes in {notes}")
    began, seen, broken = time.monotonic(), Counter(), 0
    futures = [pool.submit(_chunk, at, min(at + CHUNK, end)) for at in todo]
    for number, future in enumerate(as_completed(futures), 1):
        result = future.result()
        with notes.open("a") as file:
            file.write(json.dumps(result) + "\n")
        seen.update(result["seen"])
        broken += len(result["broken"])
        for report in result["broken"]:
            print(report)
        seconds = time.monotonic() - began
        left = seconds / number * (len(todo) - number)
        pace = f"{seen['steps'] / seconds:.0f} steps/s, {left / 60:.0f} min left"
        print(f"{number}/{len(todo)} chunks, {pace}, {broken} broken", flush=True)
    print(", ".join(f"{name} {number}" for name, number in sorted(seen.items())))
    return 1 if broken else 0


def _chunk(first: int, end: int) -> dict:
    from .plan import plan
    from .play import examine

    with _staged() as stage:
        reports = [examine(stage, plan(seed)) for seed in range(first, end)]
    return {"first": first, "seen": dict(stage.seen), "broken": [report for report in reports if report]}


def _mutants(pool, end: int) -> int:
    names, found = pool.submit(_names).result(), 0
    for future in as_completed([pool.submit(_mutant, name, end) for name in names]):
        name, own, seed, how = future.result()
        found += seed is not None
        print(f"{name:18} {own:45} {'-' if seed is None else seed:>6}  {how}", flush=True)
    print(f"{len(names)} mutants, {found} of them found by a seed below {end}")
    return 0


def _names() -> list[str]:
    from .mutants import MUTANTS

    return [mutant.name for mutant in MUTANTS]


def _mutant(name: str, end: int) -> tuple[str, str, int | None, str]:
    from .mutants import MUTANTS
    from .plan import plan
    from .play import name_of, play

    mutant = next(item for item in MUTANTS if item.name == name)
    own = mutant.history.__name__
    began = time.monotonic()
    for seed in range(end):
        with _staged(mutant) as stage:
            error = play(stage, plan(seed))
        if error is not None:
            return name, own, seed, f"{name_of(error)}, after {time.monotonic() - began:.0f} s"
    return name, own, None, ""


# -- in each process


def _prepare() -> None:
    """Set up Django, a server and a database for this process."""
    import django

    stack = ExitStack()
    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dqsim"))
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "DELAYQ_TEST_SCRATCH": scratch}
    from django_delayq.embedded import EmbeddedServer

    os.environ["DELAYQ_REDIS_URL"] = stack.enter_context(EmbeddedServer()).url
    django.setup()
    from django.test.utils import setup_databases, setup_test_environment

    setup_test_environment(debug=False)
    setup_databases(verbosity=0, interactive=False)
    global _kept
    _kept = stack


@contextmanager
def _staged(mutant=None):
    import pytest

    from .stage import Stage

    with pytest.MonkeyPatch.context() as patch:
        if mutant is not None:
            mutant.apply(patch)
        stage = Stage(patch, mutate=mutant.script if mutant else None)
        try:
            yield stage
        finally:
            stage.close()
