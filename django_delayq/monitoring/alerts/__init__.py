"""Notifies users of problems, once when a problem begins and once when it ends: by a signal, mail and a webhook."""

from .sending import deliver, deliver_pending
from .states import look_now

__all__ = ["deliver", "deliver_pending", "look_now"]
