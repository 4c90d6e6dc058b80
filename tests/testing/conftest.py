"""The fixture that users get."""

from django_delayq.testing.plugin import delayq

__all__ = ["delayq"]
