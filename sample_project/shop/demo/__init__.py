"""The parts of `manage.py demo`: its rows, its processes and its report."""
