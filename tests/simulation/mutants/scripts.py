"""Mutants of the Lua scripts."""

from .. import histories as h
from .. import histories_jobs as hj
from .. import histories_lossy as hl
from .breaking import Change, Mutant


def mutant(name, rule, script, old, new, history, broken):
    """Return a mutant of one place in one script."""
    return Mutant(name, rule, (Change(script, old, new),), history, broken)


SCRIPTS = (
    # claim.lua
    mutant(
        "claimremoves", "a claim moves a member, it does not take it out", "claim",
        "  place(scores, now)\nend\nreply[2]", "  call('ZREM', DUE, unpack(members))\nend\nreply[2]",
        h.claimed_late, "an entry is not whole",
    ),
    mutant(
        "incr", "a lease ends at now + lease, not so much later than before", "claim",
        "  place(scores, now)\nend\nreply[2]",
        "  for i = 2, #scores, 2 do call('ZINCRBY', DUE, ARGV[2], scores[i]) end\nend\nreply[2]",
        h.claimed_late, "I3 ",
    ),
    mutant(
        "nojournal", "a claim is noted, to be repeated", "claim",
        "call('SET', JOURNAL, ", "call('SET', JOURNAL, '0 ' .. ",
        h.claim_without_a_reply, "R: leases of a lost reply",
    ),
    mutant(
        "oldreplay", "a repeated reply holds only what is still leased", "claim",
        "if holders[i] == fence .. ' ' .. worker then members", "if true then members",
        h.claim_without_a_reply_and_late_repetition, "I3 ",
    ),
    mutant(
        "noold", "an old claim gets nothing", "claim",
        "if not last or last < request then", "if not last or last ~= request then",
        h.old_claim_arrives, "I3 a late claim",
    ),
    mutant(
        "clockfence", "a fence has a random part", "claim",
        "int(now) .. '.' .. ARGV[7]", "int(now) .. '.0'",
        h.two_points_in_one_ms, "I3 one fence for two claims",
    ),
    mutant(
        "unbuilt", "nothing is claimed before a flushed shard is rebuilt", "claim",
        "if reply[3] == '' then return cjson.encode(reply) end", "",
        hl.flushed_without_a_rebuild, "a shard is claimed from that is not rebuilt",
    ),
    mutant(
        "nolapsed", "a claim tells that an earlier lease ran out (R2b)", "claim",
        "lapsed[i] = holder or '0'", "lapsed[i] = '0'",
        h.overtaken_in_the_task, "I4 a stale holder recorded",
    ),
    # renew.lua
    mutant(
        "renewnofence", "only the holder renews", "renew",
        "holders[i] == rows[i][2]", "holders[i]",
        h.late_renewal, "I4 a stale request changed something",
    ),
    mutant(
        "renewcreates", "a renewal creates nothing", "renew",
        "if holders[i] == ", "if not holders[i] or holders[i] == ",
        h.late_renewal_of_nothing, "I4 a stale request changed something",
    ),
    # settle.lua
    mutant(
        "nofence", "only the holder settles", "settle",
        "if holders[i] ~= holder then", "if not stored[i] then",
        h.late_settlement_of_another, "I4 a stale request changed something",
    ),
    mutant(
        "nogencas", "an edit during the lease is not overwritten", "settle",
        "if known > used then", "if false then",
        h.edited_between_ledger_and_redis, "I1 the entry is beyond",
    ),
    mutant(
        "settlekeeps", "a settlement ends the lease", "settle",
        "forget(moved, LEASE, ATTEMPTS)", "forget(moved, ATTEMPTS)",
        h.two_points_in_one_ms, "I5 ",
    ),
    mutant(
        "dropkeeps", "a member leaves with its lease", "prelude",
        "POINT, GEN, PRIORITY, LEASE, ATTEMPTS)", "POINT, GEN, PRIORITY, ATTEMPTS)",
        hl.order_while_it_runs, "something is left of an entry",
    ),
    mutant(
        "releasenofence", "only the holder hands back", "settle",
        "if holders[i] ~= holder then", "if holders[i] ~= holder and what ~= 'release' then",
        h.late_release, "I4 a stale request changed something",
    ),
    mutant(
        "retrynofence", "only the holder puts off", "settle",
        "if holders[i] ~= holder then", "if holders[i] ~= holder and what ~= 'retry' then",
        h.late_retry, "I4 a stale request changed something",
    ),
    # upsert.lua
    mutant(
        "upsertdue", "an edit does not disturb what is due or retrying", "upsert",
        "elseif stored <= now or attempts[i] then", "elseif false then",
        h.edited_between_attempts, "another attempt comes before",
    ),
    mutant(
        "upsertleased", "an edit does not disturb a lease", "upsert",
        "local leased = holders[i] and", "local leased = false and",
        hl.swept_while_claimed, "I3 ",
    ),
    mutant(
        "upsertold", "an older definition does not replace a newer one", "upsert",
        "local newer = not known or", "local newer = true or",
        h.an_old_edit_arrives, "I1 the entry is beyond",
    ),
    mutant(
        "noforce", "after a restore the sweep forces generations down", "upsert",
        "(expected ~= '' and whole(expected) == known)", "false",
        hl.restored, "I5 Redis knows another generation",
    ),
    mutant(
        "norewind", "after a restore the sweep rewinds points ahead of the ledger", "upsert",
        "result, to = point < stored and 'REWOUND' or 'RESET', wake", "result = 'RESET'",
        hl.restored_with_a_far_point, "I",
    ),
    mutant(
        "removedue", "the end of a definition does not erase a due point", "upsert",
        "elseif score and stored and stored <= now and mode == 'end' then", "elseif false then",
        h.disabled_between_attempts, "I1 a run without outcome",
    ),
    mutant(
        "removeleased", "a live lease keeps its member in its place", "upsert",
        "elseif leased and score and (mode", "elseif false and (mode",
        hl.moved_while_it_runs, "I3 ",
    ),
    mutant(
        "removeold", "an old removal does not remove what came back", "upsert",
        "    if not newer and generation < known then", "    if false then",
        h.an_old_removal_arrives, "I1 an enabled schedule is absent",
    ),
    # upsert.lua, of rows
    mutant(
        "putleased", "a row that a worker has stays as it is", "upsert",
        "local held = leased and score", "local held, known = false, nil",
        hl.order_while_it_runs, "I4 a stale request changed something",
    ),
    mutant(
        "putsame", "a row with the key of another one takes its place", "upsert",
        "stored and known == generation)", "stored)",
        hj.far_ahead_in_place_of_another_row, "J a job that waits is absent",
    ),
    mutant(
        "putretried", "a row that was retried is noted under the lease of its holder", "upsert",
        "(not held or generation > (known or 0))", "not held",
        hj.retried_before_it_was_settled, "J a job that waits is absent",
    ),
    mutant(
        "moveleased", "what a worker has is not moved", "upsert",
        "score and (leased and holders[i] ~= '-' and 'LEASED' or 'MOVED')", "score and 'MOVED'",
        hj.moved_while_a_worker_has_it, "I4 a stale request changed something",
    ),
    # lanes and turns
    mutant(
        "onelane", "a claim takes of both lanes", "claim",
        "next_in(1, limit), next_in(2, limit), {}", "next_in(1, limit), {}, {}",
        hj.executed, "L a lane did not get its share",
    ),
    mutant(
        "nohalf", "jobs get their half beside points", "claim",
        "local most = math.min(#points, math.max(half, limit - #jobs))", "local most = #points",
        hj.claimed_with_orders, "L a lane did not get its share",
    ),
    mutant(
        "noturn", "of what is due the urgent comes first", "prelude",
        "score - steps[i] * STEP_MS", "score",
        hj.urgent_behind_many, "L a member has not its turn",
    ),
    mutant(
        "fewnoturn", "also where a claim could take the whole lane", "claim",
        "call('EXISTS', ready, PRIORITY) == 0", "call('EXISTS', ready) == 0",
        hj.urgent_among_few, "L a more urgent member was left",
    ),
    mutant(
        "placekeeps", "what gets a score loses its turn", "prelude",
        "call('ZREM', ready, unpack(names)) > 0 or ", "",
        hj.claimed_with_orders, "L a member is in two sets",
    ),
    mutant(
        "placeleaves", "what gets its turn waits no more", "prelude",
        "          call('ZREM', waiting, member)\n", "",
        hj.released_and_urgent, "L a member is in two sets",
    ),
    mutant(
        "movedleaves", "what a claim finds due waits no more", "claim",
        "    call('ZREM', waiting, unpack(members))\n", "",
        hj.claimed_with_orders, "L a member is in two sets",
    ),
    mutant(
        "dropkeepsturn", "a member leaves with its turn", "prelude",
        "for _, key in ipairs({DUE, READY, JOBS, JOBS_READY}) do call('ZREM'",
        "for _, key in ipairs({DUE, JOBS}) do call('ZREM'",
        hj.deleted_when_its_turn_has_come, "an entry is not whole",
    ),
    # epoch.lua
    mutant(
        "epochcas", "only who holds the mark calls a shard built", "epoch",
        "if epoch ~= ARGV[1] then return 0 end", "",
        hl.flushed_during_a_rebuild, "I1 an enabled schedule is absent",
    ),
)  # fmt: skip
