"""Schedules that are not made in the admin: those declared in code, and those imported from other schedulers."""
