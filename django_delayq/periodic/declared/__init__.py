"""Brings schedules that the code declares into the database. Redis follows as after every other save.

Note [Whose field]
The code owns every field but the switch (`enabled` and its reason), which it gives a new schedule only; people own that
and the tags. A sync writes what the code says over whatever stands there, and the admin lets nobody edit it.

Note [Who syncs]
Only `delayq_sync`, and `migrate` where SYNC_AFTER_MIGRATE asks for it: never a worker, a web process or an import.
During a deploy old and new code run side by side; if each wrote what it declares, the schedules would change to and fro
with every start of a process, and every change of a recurrence begins it anew.
"""

from .collect import collect
from .sync import sync, sync_after_migrate

__all__ = ["collect", "sync", "sync_after_migrate"]
