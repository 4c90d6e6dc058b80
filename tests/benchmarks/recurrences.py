"""What recurrences cost: compiling and the next point against croniter and cronsim, an outage, hostile expressions.

Run from the project's root: `python -m tests.benchmarks.recurrences [--zone NAME] [--steps N]`. Needs no server and no
database. Prints four tables of medians; asserts nothing about time.
"""

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.timing import Cron, Every, Policies, Recurrence, Run, Skip, cron, decide, wake_at
from django_delayq.timing.zone import _block

#: Our expression, and how croniter writes it.
EXPRESSIONS = [
    ("*/5 * * * *", "*/5 * * * *"),
    ("0 9 * * 1-5", "0 9 * * 1-5"),
    ("0 0 29 2 *", "0 0 29 2 *"),
    ("0 0 * * 5L", "0 0 * * L5"),
]
#: What is compiled, a new text for each number.
COMPILED: list[tuple[str, Callable[[int], str]]] = [
    ("common", lambda n: f"{n % 60} {n // 60 % 24} * * {'1-5' if n % 2 else '*'}"),
    ("ranges, steps, lists, names", lambda n: f"*/{1 + n % 30} 8-18/2,{n // 60 % 24} {1 + n % 28},15 JAN-JUN {n % 7}"),
    ("H, L, W and #", lambda n: f"H/5 {n // 60 % 24} L,15W,{1 + n % 28} * MON#2,5L"),
]
HOSTILE = [
    ("a date that never comes", "0 0 31 2 *"),
    ("255 characters of minutes", "0-59," * 48 + "60 * * * *"),
    ("120 stars", ",".join(["*"] * 119) + ",x * * * *"),
    ("50 nearest weekdays of February", "0 0 " + "31W," * 50 + "x 2 *"),
    ("50 fifth Mondays", "0 0 * * " + "1#5," * 50 + "1#6"),
    ("127 fields", "* " * 127),
    ("nested brackets", "(a+)+" * 51),
    ("a number of 245 digits", "9" * 245 + " * * * *"),
    ("10,000 characters", "*" * 10_000),
]
START = datetime(2026, 11, 21, tzinfo=UTC)
MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)


def median_us(call: Callable[[], Any], times: int) -> float:
    """Return the median time of a call in microseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def stepper(following: Callable[[datetime], Any], start: datetime) -> Callable[[], None]:
    """Return a call that goes from one point to the next."""
    point = start

    def step() -> None:
        nonlocal point
        point = following(point)

    return step


def compiling(zone: str) -> None:
    """Print what a text costs that was never compiled before."""
    print("compiling, median of 1000 texts, µs:")
    for name, text in COMPILED:
        cron._prepare.cache_clear()
        numbers, theirs = itertools.count(), itertools.count()
        ours = median_us(lambda t=text, n=numbers: Cron(t(number := next(n)), zone, key=str(number)), 1000)
        beside = ""
        if "H" not in text(0):
            beside = f"   croniter {median_us(lambda t=text, n=theirs: croniter.expand(t(next(n))), 1000):6.1f}"
        print(f"  {name:<28} {ours:6.1f}{beside}")


def next_points(zone: str, steps: int) -> None:
    """Print what one step costs: ours knows nothing but the point before; theirs, an iterator reused or made anew."""
    print(f"next point in {zone}, median of {steps} steps, µs (and how many times ours):")
    names = ("ours, first pass", "ours", "croniter reused", "croniter anew", "cronsim reused", "cronsim anew")
    print(f"  {'':<12}" + "".join(f"{name:>18}" for name in names))
    for expression, theirs in EXPRESSIONS:
        # croniter looks no further than 50 years.
        costs = step_costs(expression, theirs, zone, min(steps, 10) if expression == "0 0 29 2 *" else steps)
        cells = [f"{costs[0]:.1f}", f"{costs[1]:.1f}"] + [f"{cost:.1f} ({cost / costs[1]:.1f}x)" for cost in costs[2:]]
        print(f"  {expression:<12}" + "".join(f"{cell:>18}" for cell in cells))


def step_costs(expression: str, theirs: str, zone: str, steps: int) -> list[float]:
    """Return the six medians. Ours looks up a zone's offsets on the first pass, and knows them on the second."""
    local = START.astimezone(ZoneInfo(zone))
    _block.cache_clear()
    cron._prepare.cache_clear()
    ours = Cron(expression, zone)
    reused, simulated = croniter(theirs, local, datetime, implement_cron_bug=True), CronSim(expression, local)

    def anew(point: datetime) -> Any:
        return croniter(theirs, point, datetime, implement_cron_bug=True).get_next()

    def simulated_anew(point: datetime) -> Any:
        return next(CronSim(expression, point))

    return [
        median_us(stepper(ours.next_after, START), steps),
        median_us(stepper(ours.next_after, START), steps),
        median_us(reused.get_next, steps),
        median_us(stepper(anew, local), steps),
        median_us(simulated.__next__, steps),
        median_us(stepper(simulated_anew, local), steps),
    ]


def outage(zone: str) -> None:
    """Print what a worker decides after a week without any, and how long one decision takes."""
    print("a week's outage of a one-minute schedule, median of 30 decisions, and claims until one runs or lies ahead:")
    rules: list[tuple[str, Recurrence]] = [("cron", Cron("* * * * *", zone)), ("every", Every(MINUTE, START))]
    policies = [
        ("latest", Policies(missed="latest")),
        ("all", Policies(missed="all")),
        ("skip", Policies(missed="skip")),
        ("skip, 1 h jitter", Policies(missed="skip", jitter=timedelta(hours=1))),
        ("catch_up_window", Policies(catch_up_window=timedelta(hours=1))),
    ]
    for (kind, rule), (name, policy) in itertools.product(rules, policies):
        now = START + WEEK + timedelta(seconds=10)
        point: datetime | None = START + MINUTE
        claims, decision = 0, None
        cost = median_us(lambda r=rule, n=now, p=policy: decide(r, START + MINUTE, n, None, None, p), 30)
        while point is not None and not isinstance(decision, Run):
            decision = decide(rule, point, now, None, None, policy)
            claims += 1
            point = decision.resume_at if isinstance(decision, Skip) else point
            if point is not None and wake_at(point, policy.jitter, policy.key) > now:
                break
        print(f"  {kind:<6} {name:<17} {cost / 1000:7.3f} ms   {claims} claims")


def refusals() -> None:
    """Print how long expressions take that are meant to take long."""
    print("refusal of hostile expressions, median of 30, each a new text:")
    for name, expression in HOSTILE:
        blanks = itertools.count()

        def refuse(text: str = expression, blanks: itertools.count = blanks) -> None:  # type: ignore[type-arg]
            with contextlib.suppress(InvalidRecurrence):
                Cron(" " * next(blanks) + text)
                raise AssertionError(f"{text[:40]} was accepted")

        print(f"  {name:<32} {median_us(refuse, 30) / 1000:7.3f} ms")


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zone", default="Europe/Riga")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    compiling(options.zone)
    next_points(options.zone, options.steps)
    outage(options.zone)
    refusals()


if __name__ == "__main__":
    main()
