"""What a cron expression costs that was never compiled before, beside croniter's own reading of it.

Run from the project's root: `python -m tests.benchmarks.recurrences`. Needs no server and no database. Prints medians;
asserts nothing about time.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from croniter import croniter

from django_delayq.timing import Cron

#: What is compiled, a new text for each number.
COMPILED: list[tuple[str, Callable[[int], str]]] = [
    ("common", lambda n: f"{n % 60} {n // 60 % 24} * * {'1-5' if n % 2 else '*'}"),
    ("ranges, steps, lists, names", lambda n: f"*/{1 + n % 30} 8-18/2,{n // 60 % 24} {1 + n % 28},15 JAN-JUN {n % 7}"),
    ("H, L, W and #", lambda n: f"H/5 {n // 60 % 24} L,15W,{1 + n % 28} * MON#2,5L"),
]


def median_us(call: Callable[[int], Any], times: int = 1000) -> float:
    """Return the median time of a call in microseconds."""
    taken = []
    for number in range(times):
        began = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def main() -> None:
    """Measure once and print."""
    print("compiling, median of 1000 texts, µs:")
    for name, text in COMPILED:
        ours = median_us(lambda n, t=text: Cron(t(n), "Europe/Riga", key=str(n)))
        theirs = f"   croniter {median_us(lambda n, t=text: croniter.expand(t(n))):6.1f}" if "H" not in text(0) else ""
        print(f"  {name:<28} {ours:6.1f}{theirs}")


if __name__ == "__main__":
    main()
