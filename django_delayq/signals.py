"""The signals of this package. Sends none of them itself.

Receivers of `run_started` and `run_finished` run in the thread that executes the task; for a run without an execution,
and if the record is late, in the worker's loop. Receivers of other signals run in the loop, in the upkeep, or in the
process that saves a schedule or sends alerts. Keep them short. An exception in a receiver is logged and changes no
outcome.
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
