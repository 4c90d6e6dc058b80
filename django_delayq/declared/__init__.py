"""Brings schedules that the code declares into the database. Redis follows as after every other save.

Note [Three sides]
For every field there are three values: what the code says now, what it said at the last sync (`Declaration.values`),
and what the schedule has. Where the schedule has what the code last said, it follows the code; where it has something
else, a person changed it, and it stays. So nothing but the values tells who changed what: an edit by form, by code or
by SQL counts alike, and one that is taken back is no edit. What belongs together is compared together: kind, cron,
every and at; enabled and the reason for the pause.

Note [Who syncs]
Only `delayq_sync`, and `migrate` where SYNC_AFTER_MIGRATE asks for it: never a worker, a web process or an import.
During a deploy old and new code run side by side; if each wrote what it declares, the schedules would change to and fro
with every start of a process, and every change of a recurrence begins it anew.
"""

from .collect import collect
from .overrides import declaration_of, overrides, reset
from .sync import sync, sync_after_migrate

__all__ = ["collect", "declaration_of", "overrides", "reset", "sync", "sync_after_migrate"]
