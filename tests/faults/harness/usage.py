"""What a process uses: processor time, memory, threads, descriptors. Reads /proc, which only Linux has."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

AVAILABLE = Path("/proc/self/stat").exists()


@dataclass(frozen=True, slots=True)
class Usage:
    """One sample of one process. `rss_kib` is resident memory."""

    cpu_seconds: float
    rss_kib: int
    threads: int
    descriptors: int


def state_of(pid: int) -> str:
    """Return the letter of a process' state, such as T for one that was stopped; empty where there is none."""
    if not AVAILABLE:
        command = ["ps", "-o", "state=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()[:1]
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def usage(pid: int) -> Usage | None:
    """Return what a process uses now; None where it has ended."""
    folder = Path("/proc") / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(list((folder / "fd").iterdir()))
    except OSError:
        return None
    ticks, page_kib = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE") // 1024
    cpu_seconds = (int(fields[11]) + int(fields[12])) / ticks
    return Usage(cpu_seconds, int(fields[21]) * page_kib, int(fields[17]), descriptors)
