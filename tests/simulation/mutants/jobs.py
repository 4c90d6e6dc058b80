"""Mutants of the rules of jobs in Python."""

from django_delayq.ledger.jobs import call_back

from .. import histories_jobs as hj
from .breaking import Change, Mutant
from .rules import mutant

KEY = "J a unique key is held too long, or not long enough"

JOBS = (
    # from the commit to Redis
    mutant(
        "nomissed", "what was committed and not put a sweep puts", "sync.missing:_put_above",
        "count += _put(broker, page)", "pass",
        hj.committed_and_killed, "J a job that waits is absent",
    ),
    mutant(
        "nogaps", "keys that were missing are looked for later", "sync.missing:_put_above",
        "if notes_gaps and pk > mark.seen + 1:", "if False:",
        hj.committed_late, "J a job that waits is absent",
    ),
    mutant(
        "nogapsbehind", "also those of transactions that were open at a flush", "sync.missing:_mark_behind",
        "max(0, last - PAGE * MOST_PAGES) if _has_gaps() else last", "last",
        hj.committed_after_a_flush, "J a job that waits is absent",
    ),
    mutant(
        "norebuildrows", "a rebuild puts rows too", "sync.rebuild:_fill",
        "put_runs(broker, runs)", "0",
        hj.retrying_and_flushed, "J a job that waits is absent",
    ),
    # another row
    mutant(
        "norowgen", "a member that was put for another row starts nothing", "worker.judge:_judge_run",
        "held.entry.generation != chain.get_run_generation(run)", "False",
        hj.claimed_for_another_row, "J started in place of another row",
    ),
    mutant(
        "norowincarn", "an outcome is not written to another row", "ledger.recording:change_rows",
        "elif current == item.seen:", "elif item.seen and current[:4] == item.seen[:4]:",
        hj.executed_for_another_row, "J an outcome of a job that nobody wants",
    ),
    mutant(
        "againforgotten", "the row whose member was dropped is put", "worker.trip:Trip.judge",
        "self._callbacks += verdicts.again", "pass",
        hj.settled_for_another_row, "J a job that waits is absent",
    ),
    # not before its time, not once it is cancelled
    mutant(
        "jobearly", "no job starts before its time", "worker.judge:_judge_job",
        "if run.created_at < run.due_at and", "if False and",
        hj.moved_and_killed, "J started before its time",
    ),
    mutant(
        "jobfinal", "what has an outcome does not start", "worker.judge:_judge_run",
        " or run.status not in OPEN", "",
        hj.cancelled_and_killed, "I2 an outcome changed",
    ),
    mutant(
        "nohold", "what a worker has is not cancelled", "backend.store:_change",
        "if conf.get_config().mirror and not sync.move_now(job, utcnow() + HOLD):", "if False:",
        hj.cancelled_while_a_worker_has_it, "J a job that a worker has",
    ),
    mutant(
        "noputhold", "what is cancelled is put first", "sync.runs:move_run",
        "for mode in _MOVING:", "for mode in _MOVING[:1]:",
        hj.cancelled_before_it_is_put, "J a job that a worker has",
    ),
    mutant(
        "forgetall", "a late removal leaves a job that was retried", "sync.runs:forget_run",
        "chain.get_run_generation(run)", "2**53 - 1",
        hj.removed_late, "J a job that waits is absent",
    ),
    # unique keys
    mutant(
        "nokey", "a unique key is one job's", "backend.preparing:Preparer.prepare",
        "unique_key=one.unique_key", "unique_key=None",
        hj.enqueued_twice, "J ",
    ),
    mutant(
        "keyatstart", "a key is given up before the start", "worker.judge:_judge_job",
        "if begun or keyed else", "if begun else",
        hj.started_with_a_key, "J started before its unique key was free",
    ),
    mutant(
        "keykept", "a key is free once a job runs", "worker.judge:take_over",
        "run.unique_key = None", "pass",
        hj.started_with_a_key, KEY,
    ),
    mutant(
        "keylost", "a key is kept until the end where that was said", "worker.judge:take_over",
        "if not is_key_kept(run):", "if True:",
        hj.tried_again_with_a_key, KEY,
    ),
    mutant(
        "keyatend", "a key is free with the outcome", "worker.held:Lease.close_job",
        "run.unique_key, run.expires_at = None,", "run.expires_at =",
        hj.ended_with_a_key, KEY,
    ),
    mutant(
        "keycancelled", "a key is free once a job is cancelled", "ledger.jobs:cancel_job",
        "unique_key=None, ", "",
        hj.cancelled_with_a_key, "J ",
    ),
    mutant(
        "keyretried", "a job that is retried has its key again", "ledger.jobs:retry_job",
        "unique_key=key, ", "",
        hj.retried_with_a_key, KEY,
    ),
    # retries
    mutant(
        "retrykeeps", "a job that is retried has all its attempts", "ledger.jobs:retry_job",
        "attempt=0, reclaims=0, ", "",
        hj.retried, "J failed before all its attempts",
    ),
    mutant(
        "retryfence", "no outcome of an execution from before a retry counts", "ledger.jobs:retry_job",
        "fence=generate_tokens(1)[0], ", "",
        hj.retried_beside_an_old_execution, "J the outcome of an execution from before its retry",
    ),
    # how long it is kept
    mutant(
        "failedgone", "what failed is kept for longer than what succeeded", "worker.held:Lease.close_job",
        "settings.result_ttl if run.status == Status.SUCCEEDED else settings.failure_ttl", "settings.result_ttl",
        hj.kept_for_a_while, "J a job is gone",
    ),
    mutant(
        "gonesoon", "only what is over is deleted", "ledger.jobs:find_expired",
        ", expires_at__lt=utcnow()", "",
        hj.kept, "J a job is gone",
    ),
    mutant(
        "keptforever", "what is over is deleted", "ledger.retention:prune_expired",
        "get_database(), set(find_expired(limit))", "get_database(), set()",
        hj.kept_for_a_while, "J outcomes are kept for longer",
    ),
    # callbacks
    Mutant(
        "callbackafter", "a callback is written in the transaction of its cause",
        (
            Change(
                "django_delayq.ledger.recording:record",
                "            call_back(winners)\n", "            pass\n",
            ),
            Change(
                "django_delayq.worker.trip:Trip.record", "for _, outcome, _ in entries])",
                "for _, outcome, _ in entries])\n"
                "    call_back([each[1] for each, got in zip(entries, won) if got is Won.YES])",
            ),
        ),
        hj.killed_before_the_callback, "J not one callback for each outcome", names={"call_back": call_back},
    ),
    mutant(
        "callbackagain", "an outcome that was committed without a reply has one callback",
        "ledger.jobs:_build_callback",
        "if not path or outcome.repeated:", "if not path:",
        hj.callback_without_a_reply, "J not one callback for each outcome",
    ),
    # take-overs
    mutant(
        "jobnosuspect", "a lapsed lease makes a suspect of a job", "worker.judge:_judge_job",
        "begun = held.entry.lapsed or", "begun =",
        hj.overtaken_job, "I",
    ),
    mutant(
        "jobnocount", "an execution without a row counts as a take-over", "worker.judge:_judge_job",
        "held.take_overs += 1", "pass",
        hj.job_dies_again_and_again, "I7 ",
    ),
    # resharding
    mutant(
        "noleases", "the index is not taken away under leases", "sync.switch:_check_unused",
        "if left := broker.count_leases", "if False and broker.count_leases",
        hj.resharded, "F12 ",
    ),
)  # fmt: skip
