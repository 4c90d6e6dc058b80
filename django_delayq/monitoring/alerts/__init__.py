"""Tells people what is wrong, once, and once that it has recovered: by a signal, mail and a webhook.

What is wrong is judged by `status`; here it is looked at again and again, remembered in rows, and told.
"""

from .matters import look_now
from .sending import deliver, deliver_pending

__all__ = ["deliver", "deliver_pending", "look_now"]
