"""What is to come: due points of all schedules, counted or estimated, where they heap up, and the next ones by name."""

from .outlook import HOUR, Outlook, Peak
from .sample import Sample, next_runs, read

__all__ = ["HOUR", "Outlook", "Peak", "Sample", "next_runs", "read"]
