"""The signals of this package. Sends none of them itself.

Receivers of the public ones run in the worker: of `run_started` and `run_finished` in the thread that executes the
task, before it is called and after its outcome is recorded; of the others in the worker's loop or its upkeep. Keep them
short. An exception in a receiver is logged and changes no outcome.
"""

from django.dispatch import Signal

#: A due point's task is about to be called. Arguments: `run` (Run, perhaps not yet saved), `schedule` (Schedule).
run_started = Signal()
#: A due point has its outcome and the ledger has it. Arguments: `run` (Run), `schedule` (Schedule).
run_finished = Signal()
#: One due point or a stretch of them is skipped. Arguments: `run` (Run with `reason`, `points`), `schedule` (Schedule).
run_skipped = Signal()
#: This worker lost the lease of something that it is still executing. Arguments: `member` (str), `queue` (str).
lease_lost = Signal()
#: The next due point of a schedule cannot be computed. Arguments: `schedule` (Schedule), `reason` (str).
schedule_parked = Signal()

#: Somebody is told that something is wrong, or that it has recovered. Arguments: `alert` (Alert), `what` ("opened" or
#: "recovered"). Sent after the commit, at most once: not where the process dies just then.
alert_changed = Signal()

#: Internal: definitions were written without `save()`. Arguments: `pks` (list of int), `using` (database alias).
definitions_changed = Signal()
#: Internal: a queryset has deleted definitions. Arguments: `entries` (list of (pk, queue, generation)), `using`.
definitions_deleted = Signal()
