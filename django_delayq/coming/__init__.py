"""What is to come: due points of all schedules, counted or estimated, where they heap up, and one schedule's month."""

from .days import Day, month
from .groups import Group, Steps, grouped, per_step, starts
from .outlook import Outlook, Peak, minutes_of, starting_at
from .plans import MOST_READ, Plan, Sample, read, read_due
from .spreading import with_hash

__all__ = [
    "MOST_READ",
    "Day",
    "Group",
    "Outlook",
    "Peak",
    "Plan",
    "Sample",
    "Steps",
    "grouped",
    "minutes_of",
    "month",
    "per_step",
    "read",
    "read_due",
    "starting_at",
    "starts",
    "with_hash",
]
