"""Mutants of the rules in Python."""

import time

from django_delayq.recurrence.point import utcnow

from .. import histories as h
from .. import histories_lossy as hl
from .breaking import Change, Mutant

PACKAGE = "django_delayq."


def mutant(name, rule, where, old, new, history, broken, **names):
    """Return a mutant of one place in one function."""
    return Mutant(name, rule, (Change(PACKAGE + where, old, new),), history, broken, names=names)


RULES = (
    # R1, R2
    mutant(
        "nodisabled", "R1 a schedule that is switched off starts nothing", "worker.judge:_judge_schedule",
        "if not schedule.enabled:", "if False:",
        h.disabled_when_due, "I8 started although it was disabled",
    ),
    mutant(
        "noqueue", "R1 a schedule that was moved runs in its new place only", "worker.judge:_judge_schedule",
        "if schedule.queue != held.shard.queue:", "if False:",
        hl.moved_and_an_old_edit_arrives, "I3 two valid leases",
    ),
    mutant(
        "r2flag", "R2 asks of every point whether it is decided, not only after a lapsed lease",
        "worker.judge:_judge_schedule",
        "or not owes:", "or held.entry.lapsed and not owes:",
        hl.recorded_and_rolled_back, "R2 started after its outcome",
    ),
    mutant(
        "nocreated", "R2 no point from before the schedule", "worker.judge:_judge_schedule",
        "point <= schedule.created_at or ", "",
        hl.restored_and_made_anew, "I8 ",
    ),
    mutant(
        "noR9", "R2 a point ahead of a missing one waits", "worker.judge:_judge_schedule",
        "owes = point == first", "owes = not (row is not None and point != first or first is None)",
        hl.restored_and_ahead, "I1 a due point without a row",
    ),
    # R2b, R6
    mutant(
        "nosuspect", "R2b a lapsed lease makes a suspect", "worker.judge:_judge_new",
        "if again:", "if False:",
        h.overtaken_in_the_task, "I4 a stale holder recorded",
    ),
    mutant(
        "readlapsed", "R2b what was read after the lease closes nothing", "worker.judge:judge",
        "if held.is_lapsed():", "if False:",
        h.stopped_before_judging_a_paused_one, "I4 a stale holder recorded",
    ),
    mutant(
        "notakeover", "R2b a running row is written before a suspect runs", "worker.judge:write_running",
        "won = ledger.start([*(outcome for _, outcome in starting), *skipped])",
        "won = [Won.YES for _ in (*starting, *skipped)]",
        h.overtaken_in_the_task, "I",
    ),
    mutant(
        "countclaim", "R6 what only waited is not counted", "worker.dispatch:Dispatcher._sort",
        "elif held.take_overs:", "elif False:",
        hl.dies_beside_those_that_wait, "R6 more take-overs",
    ),
    mutant(
        "noisolation", "R6 a suspect runs alone", "worker.suspects:Suspects.is_suspect",
        "return self._alone_from <= held.take_overs <= self._max_reclaims", "return False",
        hl.dies_beside_others, "R6 a suspect does not run alone",
    ),
    mutant(
        "nopoison", "R6 what kills its workers ends", "worker.trip:Trip.begin",
        "held.take_overs > self.index.config.max_reclaims", "False",
        hl.dies_again_and_again, "I7 ",
    ),
    mutant(
        "noundo", "what was handed back counts no take-over", "ledger.closing:undo_start",
        "change_rows(names, changes, using)", "pass",
        hl.handed_back, "R6 more take-overs",
    ),
    # R3, R4, the ledger
    mutant(
        "settlefirst", "R3 the ledger first", "worker.trip:Trip.record",
        "won = ledger.record(",
        "for held in batch:\n"
        "        outcome = held.outcome\n"
        "        point = outcome.schedule.recurrence.next_after(outcome.run.due_at)\n"
        "        self.settle(held.shard, [held.go_to(point, outcome.schedule)])\n    won = ledger.record(",
        h.recorded_in_time, "R3 settled beyond",
    ),
    mutant(
        "loser", "R3 who loses the compare-and-set does not touch Redis", "worker.trip:Trip._choose_settlement",
        "self._leave_lost(held, verdicts)", "verdicts.settle.append(held.go_to(outcome.next_point, schedule))",
        hl.overtaken_after_a_flush, "R3 settled beyond",
    ),
    mutant(
        "nocas", "R3 a row is updated only as it was read", "ledger.recording:change_rows",
        "elif current == item.seen:", "elif True:",
        hl.overtaken_after_a_retry, "I",
    ),
    mutant(
        "repeated", "R3 what was committed without a reply counts once", "ledger.recording:_move_on",
        "if outcome.repeated:", "if False:",
        hl.commit_without_a_reply, "the state counts",
    ),
    mutant(
        "repeatedgoeson", "R3 whoever records once more explains nothing anew", "ledger.recording:_move_on",
        "        outcome.next_point = state.next_due_at\n",
        "        _record_left(outcome.run, claimed, schedule, state, using)\n",
        hl.commit_without_a_reply_and_edited, "I2 two outcomes for one point",
    ),
    mutant(
        "abandonedleft", "R8 what fell due behind an abandoned point is explained", "ledger.closing:close_abandoned",
        "if not run.separate and run.due_at < schedule.effective_from:", "if False:",
        hl.disabled_between_attempts_and_flushed, "I1 a due point without a row",
    ),
    mutant(
        "loserstretch", "R3 who loses the compare-and-set writes no stretch behind its point",
        "ledger.recording:_insert",
        "and (owner is None or id(owner) in winners)", "",
        hl.stretch_behind_a_lost_point, "I2 two outcomes for one point",
    ),
    mutant(
        "noincarn", "R3 an outcome belongs to the schedule that was claimed", "ledger.recording:_advance",
        "row is None or row.created_at != outcome.schedule.created_at", "row is None",
        hl.restored_under_a_run, "I8 a row of another incarnation",
    ),
    mutant(
        "fromclock", "R4 the next point comes from the claimed one", "worker.trip:Trip._choose_settlement",
        "held.go_to(outcome.next_point, schedule)",
        "held.go_to(schedule.recurrence.next_after(held.claimed_at), schedule)",
        h.recorded_late, "R3 settled beyond",
    ),
    mutant(
        "halftrailing", "R8 a hand-over brings what the edit left", "worker.trip:_list_companions",
        "(decided or outcome.owner is not None)", "not Status(outcome.run.status).is_open",
        h.edited_and_overlapping, "I1 a due point without a row",
    ),
    # R8
    mutant(
        "noR8", "R8 what an edit left is explained", "worker.judge:_skip_left_by_edit",
        "point, edited = held.point, schedule.effective_from", "return",
        h.late_after_an_edit, "I1 a due point without a row",
    ),
    mutant(
        "noowes", "R8 what the mirror owes is remembered", "ledger.chain:find_undecided",
        "if due is None or not", "if True or not",
        hl.edited_and_flushed, "I1 a due point without a row",
    ),
    mutant(
        "noleft", "R8 whoever records explains what an edit ended meanwhile", "ledger.recording:_move_on",
        "if explain and claimed.effective_from", "if False and claimed.effective_from",
        h.edited_while_later_ones_fell_due, "I1 a due point without a row",
    ),
    mutant(
        "skipslost", "R9 what is skipped for the newest point is written with its row", "worker.judge:_judge_new",
        "held.outcome.owner, held.beside = skipped[0], skipped", "pass",
        h.newest_killed, "I1 a due point without a row",
    ),
    mutant(
        "newestalone", "R9 the first skipped stretch decides who has the newest point", "worker.judge:_judge_new",
        "held.outcome.owner, held.beside = skipped[0], skipped", "held.beside = skipped",
        hl.newest_of_points_that_another_one_has, "I2 two outcomes",
    ),
    mutant(
        "newestleft", "R9 what an edit left begins behind the point that runs", "ledger.recording:_advance",
        "explain=pk not in begun", "explain=True",
        h.newest_taken_over_and_edited, "I2 two outcomes for one point",
    ),
    mutant(
        "skipsedit", "R8 what an edit left is explained once", "worker.judge:_decide_at",
        "[replace(skips[0], last=point, points=1)], None", "skips[:1], None",
        h.late_after_an_edit, "I2 two outcomes for one point",
    ),
    mutant(
        "noowedfirst", "R8 an owed point comes before a later one that fell due meanwhile",
        "worker.judge:_judge_schedule",
        "owed < point <= edited", "False",
        hl.edits_seen_late, "I1 a due point without a row",
    ),
    mutant(
        "pausededit", "R8 what an older definition left is explained by a pause too", "worker.judge:_judge_disabled",
        "if held.point < schedule.effective_from:", "if False:",
        h.disabled_after_an_edit, "I1 a due point without a row",
    ),
    mutant(
        "dropsowed", "R8 a decided point of a schedule that is switched off makes way for an owed one",
        "worker.judge:_judge_disabled",
        "verdicts.settle.append(held.go_to(owed, schedule))",
        "verdicts.settle.append(held.drop())",
        h.disabled_before_it_was_settled, "I1 a due point without a row",
    ),
    mutant(
        "gonerecorded", "what was recorded stands when the schedule is deleted", "ledger.recording:_advance",
        "if not outcome.repeated:", "if True:",
        hl.deleted_after_a_commit_without_a_reply, "I2 an outcome changed",
    ),
    # the self-fence and the journal
    mutant(
        "noselffence", "nothing is started after its lease", "worker.held:Lease.is_lapsed",
        "return self.lost or time.monotonic() >= self.deadline", "return False",
        h.waits_past_its_lease, "I4 started after its lease",
    ),
    mutant(
        "fencefromreply", "the deadline counts from the sending of the claim", "worker.trip:Trip.claim",
        "claim.holder, deadline,",
        "claim.holder, time.monotonic() + self.index.config.lease_seconds,",
        h.slow_reply, "I4 started after its lease", time=time,
    ),
    mutant(
        "noreplay", "the loop repeats a claim without a reply", "worker.dispatch:Claims.claim",
        "self.unanswered.add(shard)", "pass",
        h.claim_without_a_reply, "R: leases of a lost reply",
    ),
    mutant(
        "notowed", "what is not owed is settled to the first missing point", "worker.judge:_judge_schedule",
        "held.go_to(first if rows else owed or first, schedule)", "held.drop()",
        h.killed_before_settling, "R3 settled beyond",
    ),
    mutant(
        "noedited", "R8 a point that was due at an edit runs once", "worker.judge:_judge_schedule",
        "elif row is None and point <= edited:", "elif False:",
        h.edited_when_due, "I1 a due point without a row",
    ),
    mutant(
        "forgetsettle", "what Redis did not take is settled later", "worker.recorder:Recorder.flush",
        "for shard, entries in list(self._unsettled.items()):",
        "for shard, entries in [(shard, self._unsettled.pop(shard)) for shard in list(self._unsettled)]:\n"
        "            self._unsettled[shard] = []",
        h.settled_later, "R3 what was recorded is not settled",
    ),
    mutant(
        "ownclock", "lateness is judged by the server's clock", "worker.trip:Trip.claim",
        "from_ms(claim.now_ms)", "utcnow()",
        h.claimed_by_a_fast_clock, "I8 started before it was due", utcnow=utcnow,
    ),
    # the mirror
    mutant(
        "plaingen", "generations grow with the clock", "models.versions:now_generation",
        "return int(utcnow().timestamp() * 1000)", "return 1",
        hl.an_old_removal_after_a_restore, "I1 an enabled schedule is absent",
    ),
    mutant(
        "noR10", "open rows that nobody will end are closed", "sync.runs:close_abandoned",
        "if not dry_run:", "if False:",
        hl.deleted_under_a_run, "I1 a run without outcome",
    ),
    mutant(
        "noputback", "orders that Redis lost are put back", "sync.runs:put_back",
        "if not dry_run:", "if False:",
        hl.order_retrying_and_flushed, "I1 a run without outcome",
    ),
    mutant(
        "noghosts", "members that nothing stands behind are removed", "sync.sweep:remove_ghosts",
        "if ghosts and not dry_run:", "if False:",
        hl.deleted_unseen, "I5 a member that nothing stands behind",
    ),
    mutant(
        "nodelta", "the delta sweep brings missed edits", "sync.sweep:_mirror_edits",
        "newer = sync(broker, [pk for (pk,) in rows.read(pks, unmirrored)])", "newer = []",
        hl.edit_unseen, "I5 the sweep left an edit",
    ),
    mutant(
        "notombstone", "tombstones are followed", "sync.write:remove_tombstones",
        "rows = Tombstone", "return set()\n    rows = Tombstone",
        hl.moved_while_it_runs, "a member is in two places",
    ),
    mutant(
        "twoplaces", "a moved schedule enters its new place after it has left the old one", "sync.write:write_wanted",
        "if held:", "if False:",
        hl.moved_while_it_runs, "a member is in two places",
    ),
    mutant(
        "nomark", "a rebuild that lost its mark does not call the shard built", "sync.rebuild:Build.finish",
        "return all(self.broker.swap_epochs(self.shards, self._mark, self",
        "return all(self.broker.swap_epochs(self.shards, None, self",
        hl.flushed_during_a_full_sweep, "I1 an enabled schedule is absent",
    ),
    mutant(
        "nolayoutbehind", "a rebuild claims the layout again behind its marks", "sync.rebuild:rebuild",
        "check_layout(broker)", "pass",
        hl.flushed_between_two_marks, "I1 an enabled schedule is absent",
    ),
    mutant(
        "nolayout", "nobody touches another database's prefix", "sync.layout:check_layout",
        "own, text = get_own_layout", "return\n    own, text = own_layout",
        hl.another_database, "F31 ",
    ),
    mutant(
        "disabledowes", "a point that was due when a schedule was switched off survives a flush",
        "sync.read:_work_out",
        "if undecided is not None and schedule.state.condition != Condition.BROKEN:", "if False:",
        h.disabled_and_moved, "I1 a due point without a row",
    ),
)  # fmt: skip
