"""Whether workers grow: memory, threads and descriptors of those that live all along."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.faults.harness.background import Background
from tests.faults.harness.usage import Usage, usage

#: What a worker may hold more at the end than after it had warmed up.
MEMORY_SHARE, MEMORY_KIB = 0.10, 6 * 1024
DESCRIPTORS, THREADS = 6, 1
#: The samples before the first fault, and how long a soak has to wait with it.
CALM, CALM_SECONDS = 3, 4.0


@dataclass(frozen=True, slots=True)
class Growth:
    """One worker, early and late. Late is the median of the last quarter.

    Early is, of memory, the median of the second quarter, because caches fill at first; of threads and descriptors,
    that of the samples before the first fault, because none of them has a reason to grow.
    """

    pid: int
    seconds: float
    early: Usage
    late: Usage

    @property
    def flat(self) -> bool:
        """Whether it has stayed as it was."""
        return (
            self.late.rss_kib <= self.early.rss_kib * (1 + MEMORY_SHARE) + MEMORY_KIB
            and self.late.threads <= self.early.threads + THREADS
            and self.late.descriptors <= self.early.descriptors + DESCRIPTORS
        )

    def __str__(self) -> str:
        early, late = self.early, self.late
        return (
            f"worker {self.pid}, {self.seconds:.0f} s: memory {early.rss_kib / 1024:.1f} -> {late.rss_kib / 1024:.1f} "
            f"MiB, threads {early.threads} -> {late.threads}, descriptors {early.descriptors} -> {late.descriptors}"
        )


class Sampler(Background):
    """Samples the processes that `pids` names, in a thread of its own."""

    def __init__(self, pids: Callable[[], Sequence[int]], every_seconds: float = 1.0) -> None:
        super().__init__()
        self._pids, self._every = pids, every_seconds
        self._samples: dict[int, list[tuple[float, Usage]]] = {}

    def watch(self) -> None:
        """Sample again and again."""
        while not self.ended.wait(self._every):
            for pid in self._pids():
                sample = usage(pid)
                if sample is not None:
                    self._samples.setdefault(pid, []).append((time.monotonic(), sample))

    def growths(self) -> list[Growth]:
        """Return the growth of each process that was sampled often enough to tell."""
        found = []
        for pid, samples in self._samples.items():
            quarter = len(samples) // 4
            if quarter >= 3:
                values = [sample for _, sample in samples]
                seconds = samples[-1][0] - samples[0][0]
                calm, early, late = map(_median, (values[:CALM], values[quarter : 2 * quarter], values[-quarter:]))
                early = replace(calm, rss_kib=early.rss_kib)
                found.append(Growth(pid, seconds, early, late))
        return found


def _median(values: Sequence[Usage]) -> Usage:
    return Usage(
        0.0,
        int(statistics.median(value.rss_kib for value in values)),
        int(statistics.median(value.threads for value in values)),
        int(statistics.median(value.descriptors for value in values)),
    )
