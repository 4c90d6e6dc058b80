"""Notifies users of problems, once when a problem begins and once when it ends: by a signal, mail and a webhook.

`status` judges what is a problem; this package checks it repeatedly, stores it in rows, and sends messages.
"""

from .sending import deliver, deliver_pending
from .states import look_now

__all__ = ["deliver", "deliver_pending", "look_now"]
