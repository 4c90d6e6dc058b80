"""Django's tasks framework on our queues: `TASKS = {"default": {"BACKEND": "django_delayq.backend.DelayQBackend"}}`."""

from .backend import DelayQBackend

__all__ = ["DelayQBackend"]
