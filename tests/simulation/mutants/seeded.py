"""Mutants without a history of their own: seeds find them. Of jobs, and of what the process tests were seen failing by.

`python -m tests.simulation --mutants` says by which seed.
"""

from django_delayq.fields import utcnow

from .breaking import Change, Mutant

PACKAGE = "django_delayq."


def script(name, rule, where, old, new):
    """Return a mutant of one place in one script."""
    return Mutant(name, rule, (Change(where, old, new),), None, "")


def code(name, rule, where, old, new, **names):
    """Return a mutant of one place in one function."""
    return Mutant(name, rule, (Change(PACKAGE + where, old, new),), None, "", names=names)


SEEDED = (
    # due points
    script(
        "claimremoves", "a claim moves a member, it does not take it out", "claim",
        "call('ZADD', DUE, unpack(scores))", "call('ZREM', DUE, unpack(members))",
    ),
    code(
        "notowed", "what is not owed is settled to the first missing point", "worker.judge:_judge_schedule",
        "held.go_to(first if rows else owed or first, schedule)", "held.drop()",
    ),
    code(
        "noedited", "a point that was due at an edit runs once", "worker.judge:_not_owed",
        "if row is None and point <= schedule.effective_from:", "if False:",
    ),
    code(
        "forgetsettle", "what Redis did not take is settled later", "worker.recorder:Recorder._settle",
        "for place, entries in list(unsettled.items()):",
        "for place, entries in [(place, unsettled.pop(place)) for place in list(unsettled)]:\n"
        "        unsettled[place] = []",
    ),
    code(
        "ownclock", "lateness is judged by the server's clock", "worker.trip:Trip.claim",
        "from_ms(claim.now_ms)", "utcnow()", utcnow=utcnow,
    ),
    # jobs
    script(
        "jobclaimremoves", "a claimed job stays in Redis", "job_claim",
        "call('ZADD', JOBS, unpack(scores))", "",
    ),
    script(
        "jobnofence", "only the holder settles a job", "job_settle",
        "if not own[i] then", "if false then",
    ),
    script(
        "jobrenewnofence", "only the holder renews a job", "job_renew",
        "own[i] = holder == ARGV[first + (i - 1) * size + 1]", "own[i] = holder",
    ),
    script(
        "jobnojournal", "a claim of jobs is noted, to be repeated", "job_claim",
        "call('SET', journal, int(request) ..", "call('SET', journal, '0' ..",
    ),
    script("jobnolapsed", "a claim tells that a lease of a job ran out", "job_claim",
        "lapsed[i] = holder or '0'", "lapsed[i] = '0'"),
    script("jobresultonly", "a job is forgotten with its result", "job_settle", "gone[#gone + 1] = member", ""),
    script("jobheldcancel", "what a worker has is not cancelled", "job_change",
        "elseif (call('HGET', HELD, member) or '-') ~= '-' then", "elseif false then"),
    script("jobkeykept", "a key is taken while its job waits", "job_enqueue",
        "local standing = key ~= '' and call('HGET', UNIQUE, 'k' .. key)", "local standing = false"),
    script("jobearly", "no job starts before its time", "job_enqueue", "if wake > now then", "if false then"),
    script("jobagain", "what is sent twice is there once", "job_enqueue",
        "elseif there or added[member] or again and call('EXISTS', KEYS[COMMON + n]) == 1 then", "elseif false then"),
    code(
        "jobcas", "a row of a job is written only as it was read", "ledger.changing:change",
        "elif stands == item.seen:", "elif True:",
    ),
    code(
        "jobnorow", "a claimed durable job is looked up", "kinds.job_rows:_sort",
        "if row is None or not row.is_open:", "if row is None:",
    ),
    code(
        "jobnostart", "a repetition of a durable job is written before it begins", "ledger.jobs:start_jobs",
        "new if won is Won.YES else Won.LOCKED if won is Won.LOCKED else Won.LOST", "new",
    ),
    code(
        "jobnoput", "durable jobs that Redis lost are put back", "mirror.durable:put_back_jobs",
        "if missing and not dry_run:", "if False:",
    ),
    code(
        "jobnopoison", "a job that kills its workers ends", "kinds.jobs:Jobs.begin",
        "job.take_overs > conf.get_config().max_reclaims", "False",
    ),
    code(
        "jobnosuspect", "a job that somebody may have executed is proven first",
        "kinds.jobs:Jobs.judge",
        "(verdicts.suspects if job.entry.lapsed else verdicts.start)", "verdicts.start",
    ),
)  # fmt: skip
