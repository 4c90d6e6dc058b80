"""An app that changes the process it is installed in, for worker processes of the fault suite. See `apps.py`."""
