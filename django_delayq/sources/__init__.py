"""Schedules from elsewhere than the admin: those that the code declares, and those of other schedulers' files."""
