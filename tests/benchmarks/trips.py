"""How many files and functions of the package one due point, one job and one page of the admin pass through.

Run from the project's root: `python -m tests.benchmarks.trips`. Uses the suite's settings, see `throughput`.
A trip begins before the claim and ends when Redis is settled. Counted are the functions of the package that are called,
those of the slot's thread too; a file switch is a call or a return from one file of the package to another, in the
loop's thread. A trip is made once before it is counted, so that what is done at the first one only does not count.
The page is *At a glance*, for a superuser of a site without schedules.
"""

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.benchmarks import set_up

#: How often a trip is made. The first does more, and so does one during which a second ends: counts are written then.
TIMES = 6
PACKAGE = str(Path(__file__).parents[2] / "django_delayq") + "/"


class Trip:
    """What is called while this is entered."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, int] = {}
        self.switches = 0
        self._main = threading.get_ident()
        self._last = ""

    def __enter__(self) -> "Trip":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        self.functions = {code: n for code, n in self.functions.items() if not code.co_name.startswith("<")}

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            self.functions[code] = self.functions.get(code, 0) + 1
        elif frame.f_back is not None:
            code = frame.f_back.f_code
        if threading.get_ident() == self._main and code.co_filename.startswith(PACKAGE):
            self.switches += bool(self._last) and self._last != code.co_filename
            self._last = code.co_filename

    @property
    def files(self) -> set[str]:
        """The files of what was called."""
        return {code.co_filename for code in self.functions}


def main() -> None:
    """Make each trip several times, and print a table of the shortest ones."""
    set_up()
    from django_delayq.models import Run
    from django_delayq.worker.loop import Worker
    from django_delayq.worker.options import WorkerOptions
    from tests.jobs import tasks

    worker = Worker(WorkerOptions(queues=("default",), threads=1))
    worker.upkeep.begin(burst=True, stopping=lambda: False)
    threading.setprofile(lambda *noted: trip._note(*noted))  # in the slot's thread, which starts now
    trip = Trip()
    print(f"{'':15} {'files':>6} {'functions':>10} {'calls':>6} {'file switches':>14}")
    show("At a glance", overview())
    worker.slots.start()
    flows: dict[str, Callable[[], Any]] = {
        "a due point": lambda: due_point(worker.broker),
        "a job": lambda: tasks.echo.enqueue(1),
    }
    for name, prepare in flows.items():
        trips = []
        for _ in range(TIMES):
            worker.run_round(0.0)  # what else there is to do before
            prepare()
            trip = Trip()
            make(worker, trip)
            trips.append(trip)
        show(name, min(trips[1:], key=lambda each: (len(each.files), each.switches)))
    assert Run.objects.finished().count() == TIMES * len(flows)
    worker.slots.stop(1.0)
    worker.broker.purge()


def show(name: str, trip: Trip) -> None:
    """Print a line of the table."""
    calls = sum(trip.functions.values())
    print(f"{name:15} {len(trip.files):6} {len(trip.functions):10} {calls:6} {trip.switches:14}")


def overview() -> Trip:
    """Get the overview twice, and return the second trip."""
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.get_or_create(username="boss", is_staff=True, is_superuser=True)[0])
    for _ in range(2):
        trip = Trip()
        with trip:
            assert client.get("/admin/django_delayq/overview/").status_code == 200
    return trip


def make(worker: Any, trip: Trip) -> None:
    """Have the worker do what is due, and note what it calls."""
    before = worker.recorder.runs
    for place in worker.shards:
        worker.inbox.put((place, 0))
    with trip:
        while worker.recorder.runs == before or worker.keeper._held:
            worker.run_round(0.01)


def due_point(broker: Any) -> None:
    """Have a schedule whose point has just come due."""
    from django_delayq.models import Schedule
    from django_delayq.recurrence.point import utcnow
    from tests.support import make_due

    name = f"s{Schedule.objects.count()}"
    schedule = Schedule.objects.create(
        name=name, task="tests.app.tasks.noop", kind="every", every=timedelta(hours=1), created_at=utcnow()
    )
    make_due(broker, schedule)


if __name__ == "__main__":
    main()
