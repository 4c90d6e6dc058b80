"""What is to come: due points of all schedules, counted or estimated, where they heap up, and one schedule's month."""

from .days import DAYS, Day, month, plan
from .hour import Hour, look_into, minute_of
from .outlook import HOUR, Outlook, Peak
from .sample import Sample, goes_on, read
from .spreading import with_hash

__all__ = [
    "DAYS", "HOUR", "Day", "Hour", "Outlook", "Peak", "Sample", "goes_on", "look_into", "minute_of", "month", "plan",
    "read", "with_hash",
]  # fmt: skip
