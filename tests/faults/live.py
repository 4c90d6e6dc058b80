"""Workers in threads of the test's own process, for faults that need a hand on what happens between two steps."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django_delayq.worker.loop import Worker
from django_delayq.worker.options import WorkerOptions
from tests.acceptance.support import PATIENCE_SECONDS, wait_until
from tests.faults.harness.workers import WorkerProcess

QUEUES = ("default", "mail")


class WorkerThread:
    """One worker's `run()` in a thread. What it raises is raised again by `end`."""

    def __init__(self, name: str, **options: Any) -> None:
        self.worker = Worker(WorkerOptions(**{"queues": QUEUES, "threads": 8, "name": name, **options}))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error

    @property
    def alive(self) -> bool:
        """Whether it still works."""
        return self._thread.is_alive()

    def end(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for its end, and raise what it raised."""
        self._thread.join(seconds)
        assert not self.alive, f"{self.worker.options.name} does not end"
        if self.error is not None:
            raise self.error


@contextmanager
def live_worker(name: str = "live", **options: Any) -> Iterator[WorkerThread]:
    """A worker that works until the end of the `with`, and must not have ended before."""
    thread = WorkerThread(name, **options)
    try:
        wait_until(lambda: not thread.alive or thread.worker.upkeep._threads, 20, "its start")
        yield thread
        assert thread.alive, f"the worker ended: {thread.error!r}"
    finally:
        thread.worker.stop()
        thread.end()


@contextmanager
def together(*workers: WorkerProcess) -> Iterator[None]:
    """Wait until all these processes are ready, and end all of them afterwards."""
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker)
        for worker in workers:
            worker.ready()
        yield
