"""Tells people what is wrong, once, and once that it has recovered: by a signal, mail and a webhook.

What is wrong is judged by `status`; here it is looked at again and again, remembered in rows, and told.
"""

from .sending import deliver, deliver_pending
from .states import look_now

__all__ = ["deliver", "deliver_pending", "look_now"]
