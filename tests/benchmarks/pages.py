"""How long each page of the admin takes over many schedules and runs, how often it asks the database, and what longest.

Run from the project's root, with DATABASE_URL naming a PostgreSQL database of its own:
`python -m tests.benchmarks.pages [--schedules N] [--runs N]`. Fills the database where it holds no schedules yet
(`pages_data.py`), else measures what is there. Redis is empty. Prints a table; asserts nothing about time.
"""

import argparse
import re
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from tests.benchmarks import set_up

REPEATS = 5
SCHEDULES, RUNS = "/admin/django_delayq/schedule/", "/admin/django_delayq/run/"
OVERVIEW = "/admin/django_delayq/overview/"
COMING = f"{OVERVIEW}coming/"
STATES = ("enabled", "paused", "failing", "finished", "broken", "unmirrored")
ENDS = ("succeeded", "failed", "skipped", "lost")


def schedule_pages(client: Any) -> dict[str, str]:
    """Return the addresses of the pages about schedules, by what they are called in the table."""
    from django_delayq.models import Schedule

    pk = Schedule.objects.order_by("pk").values_list("pk", flat=True)[10]
    pages = {"schedules": SCHEDULES, **turned("schedules", client, SCHEDULES)}
    backwards = f"{SCHEDULES}?o=-1"
    pages |= {"schedules by name, backwards": backwards, **turned("schedules by name, backwards", client, backwards)}
    for text in ("report 0000123", "report", "tests.app.tasks.flaky", "no such name", "0000123"):
        pages[f"schedules, search {text!r}"] = f"{SCHEDULES}?{urlencode({'q': text})}"
    filters = [("state", state) for state in STATES] + [("outcome", end) for end in (*ENDS, "none")]
    filters += [("origin", origin) for origin in ("hand", "code", "gone")]
    filters += [("kind__exact", kind) for kind in ("cron", "once")]
    filters += [("queue", queue) for queue in ("default", "mail", "former")]
    pages |= {f"schedules, {name} {value}": f"{SCHEDULES}?{name}={value}" for name, value in filters}
    pages |= {f"coming, {span}": f"{COMING}?span={span}" for span in ("24h", "7d")}
    pages |= {"at a glance": f"{OVERVIEW}", "at a glance, 7d": f"{OVERVIEW}?span=7d", "now": f"{OVERVIEW}now/"}
    pages |= {
        "audit": "/admin/django_delayq/auditentry/",
        "ask, a time": f"{OVERVIEW}ask/?at=10:00",
        "ask, a name": f"{OVERVIEW}ask/?name=report",
    }
    pages |= {"schedule, why": f"{SCHEDULES}{pk}/why/?at=10:00"}
    return pages | {"schedule, change": f"{SCHEDULES}{pk}/change/", "schedule, add": f"{SCHEDULES}add/"}


def run_pages(client: Any) -> dict[str, str]:
    """Return the addresses of the pages about runs and jobs."""
    from django_delayq.models import Run

    run = Run.objects.order_by("-pk").values_list("pk", "schedule_id")[3]
    pages = {"runs": RUNS, **turned("runs", client, RUNS)}
    filters = [("status__exact", end) for end in (*ENDS, "queued", "running", "retrying")]
    filters += [("origin__exact", origin) for origin in ("due", "manual", "backfill", "job")]
    filters += [("schedule__id__exact", str(pk)) for pk in (run[1], busiest())]
    pages |= {f"runs, {name.partition('__')[0]} {value}": f"{RUNS}?{name}={value}" for name, value in filters}
    for text in ("report 0000123", "report", "tests.app.tasks.flaky", "no such name"):
        pages[f"runs, search {text!r}"] = f"{RUNS}?{urlencode({'q': text})}"
    pages |= {f"failures, {span}": f"{RUNS}failures/?span={span}" for span in ("24h", "7d")}
    if error := commonest_error():
        pages |= {
            f"{name}, error": f"{address}?error={error}" for name, address in (("runs", RUNS), ("schedules", SCHEDULES))
        }
    return pages | {"run": f"{RUNS}{run[0]}/change/", "jobs, failed": f"{RUNS}?origin__exact=job&status__exact=failed"}


def commonest_error() -> str:
    """Return what the lists are filtered by for the largest group of failures of a week; '' where nothing failed."""
    from django_delayq.monitoring.failures import group_failures, read_failures

    now = datetime.now(UTC)
    groups = group_failures(read_failures(now), now - timedelta(days=7))
    return f"7d.{max(groups, key=lambda group: len(group.runs)).digest}" if groups else ""


def busiest() -> int:
    """Return the schedule with the most runs; see `pages_data.py`."""
    from django_delayq.models import Schedule

    pk: int = Schedule.objects.order_by("pk").values_list("pk", flat=True)[1]
    return pk


def turned(title: str, client: Any, address: str) -> dict[str, str]:
    """Return the second page of a list and the last that it leads to."""
    numbers = re.findall(r'[?;]p=(\d+)"', client.get(address).content.decode())
    glue = "&" if "?" in address else "?"
    found = {"next": 2, "last": max(map(int, numbers))} if numbers else {}
    return {f"{title}, {name}": f"{address}{glue}p={number}" for name, number in found.items()}


def for_viewer(address: str) -> str:
    """Return the address of the same page for who may change nothing, whose list of schedules has no first column."""
    if not address.startswith(SCHEDULES):
        return address
    return re.sub(r"([?&]o=-?)(\d)", lambda found: f"{found[1]}{int(found[2]) - 1}", address)


def clients() -> list[Any]:
    """Return a superuser's client, and one of somebody who may only look."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    found = []
    for name in ("boss", "viewer"):
        user, _created = User.objects.get_or_create(
            username=name, defaults={"is_staff": True, "is_superuser": name == "boss"}
        )
        if name == "viewer":
            user.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
        client = Client()
        client.force_login(user)
        found.append(client)
    return found


def milliseconds(client: Any, address: str, repeats: int) -> list[float]:
    """Return what each look at a page took."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        status = client.get(address).status_code
        taken.append((time.perf_counter() - began) * 1000)
        if status not in (200, 403):
            raise SystemExit(f"{address}: {status}")
    return taken


def measure() -> None:
    """Print a line a page."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    boss, viewer = clients()
    print(f"{'page':<46}{'ms':>7}{'first':>8}{'viewer':>8}{'queries':>9}  slowest")
    for title, address in {**schedule_pages(boss), **run_pages(boss)}.items():
        first, *_rest = taken = milliseconds(boss, address, REPEATS)
        seen = milliseconds(viewer, for_viewer(address), REPEATS)
        with CaptureQueriesContext(connection) as captured:
            boss.get(address)
        slowest = max(captured.captured_queries, key=lambda query: float(query["time"]))
        numbers = f"{statistics.median(taken):>7.0f}{first:>8.0f}{statistics.median(seen):>8.0f}{len(captured):>9}"
        said = re.sub(r'SELECT (?!COUNT|1 ).*? FROM|"django_delayq_|"', "…", slowest["sql"])
        print(f"{title:<46}{numbers}  {float(slowest['time']) * 1000:.0f} ms {said[:70]}", flush=True)


def main() -> None:
    """Fill the database where it is empty, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1_000_000)
    options = parser.parse_args()
    set_up()
    from django.db import connection

    from django_delayq.models import Schedule
    from tests.benchmarks.pages_data import fill

    if connection.vendor != "postgresql":
        raise SystemExit("DATABASE_URL must name a PostgreSQL database")
    if not Schedule.objects.exists():
        began = time.monotonic()
        fill(options.schedules, options.runs)
        print(f"{options.schedules} schedules and {options.runs} runs made in {time.monotonic() - began:.0f} s")
    measure()


if __name__ == "__main__":
    main()
