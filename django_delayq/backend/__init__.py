"""Django's tasks framework on our queue: `TASKS = {"default": {"BACKEND": "django_delayq.backend.DelayQBackend"}}`."""

from .backend import DelayQBackend

__all__ = ["DelayQBackend"]
