"""The signals of this package. Sends none of them itself.

Receivers run in the worker: of `run_started` and `run_finished` in the thread that executes the task, of the others in
the loop or the upkeep. Keep them short. An exception in a receiver is logged and changes no outcome.
"""

from django.dispatch import Signal

#: The task of a due point is about to be called. Arguments: `run` (Run, may be unsaved), `schedule` (Schedule).
run_started = Signal()
#: The outcome of a due point is in the ledger. Arguments: `run` (Run), `schedule` (Schedule).
run_finished = Signal()
#: A due point or a stretch was skipped. Arguments: `run` (Run with `reason`, `points`), `schedule` (Schedule).
run_skipped = Signal()
#: This worker lost the lease of a running execution. Arguments: `member` (str), `queue` (str).
lease_lost = Signal()
#: A next due point cannot be computed. A process that saves sends it too. Arguments: `schedule`, `reason` (str).
schedule_broken = Signal()

#: An alert has opened or recovered. Arguments: `alert` (Alert), `what` ("opened" or "recovered"). Sent at most once.
alert_changed = Signal()

#: Internal: definitions were written without `save()`. Arguments: `pks` (list of int), `using` (database alias).
definitions_changed = Signal()
#: Internal: a queryset has deleted definitions. Arguments: `entries` (list of (pk, queue, generation)), `using`.
definitions_deleted = Signal()
