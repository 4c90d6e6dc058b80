"""What must hold: after every step, at every start of a task, at every write, and once all is quiet."""

import itertools
from collections import Counter

from .faults import Broken
from .view import OPEN, RunRow, View

#: No definition of these histories has its first point later than so long after it begins.
LONGEST_GAP_MS = 41_000


class Invariants:
    """Looks past the package: at tables, keys, and at what the workers hold in memory."""

    def __init__(self, world):
        self.world = world
        #: Run pk -> what its row said when it got its outcome.
        self.final = {}
        #: (schedule, origin, due) -> executions begun.
        self.begun = Counter()
        #: The same, with those that a slot had when the worker died, or stood still for a lease, just before.
        self.counted = Counter()
        #: (schedule, origin, due) -> executions begun with nothing else in their process, or nearly begun so.
        self.alone = Counter()
        #: schedule -> the most attempts that any definition gave it.
        self.attempts = Counter()
        #: schedule -> moves to another queue.
        self.moved = Counter()
        #: (schedule, origin, due) whose row said once that it runs when it only waited.
        self.waited = set()
        #: (schedule, point) that were due at an edit, and so still run once.
        self.owed = set()

    # -- after every step

    def after_step(self):
        """Check everything that holds at any instant."""
        view = self.world.view = View(self.world)
        self._outcomes_stand(view)
        self._stretches_are_apart(view)
        self._states_agree(view)
        self._entries_are_whole(view)
        self._nobody_is_missing(view)
        self._one_holder(view)
        self.world.promises.after_step(view)

    def forget(self, key):
        """Note that all its executions count no more: it was retried."""
        for noted in (self.begun, self.counted, self.alone):
            noted.pop(key, None)
        self.waited.discard(key)

    def _outcomes_stand(self, view):
        for pk, was in self.final.items():
            if pk not in view.runs and RunRow(was).token:
                continue  # `Promises` knows when it may be gone
            if pk not in view.runs or view.runs[pk].raw != was:
                raise Broken("I2 an outcome changed", was, view.runs.get(pk))
        self.final = {run.pk: run.raw for run in view.runs.values() if run.final}

    def _stretches_are_apart(self, view):
        for rows in view.chains.values():
            for row, following in itertools.pairwise(rows):
                if row.until >= following.due:
                    raise Broken("I2 two outcomes for one point", row, following)

    def _states_agree(self, view):
        for pk, schedule in view.schedules.items():
            rows = view.chains.get(pk, [])
            decided = [row for row in rows if row.final or row.separate]
            last = max((row.until for row in decided), default=None)
            if last != schedule.last_due:
                raise Broken("the state differs from the ledger", schedule, decided)
            count = sum(row.separate or row.counted for row in decided)
            if count != schedule.run_count:
                raise Broken("the state counts other runs than the ledger", schedule, decided)
            if any(row.due <= schedule.created for row in rows):
                raise Broken("I8 a row of another incarnation", schedule, rows)

    def _entries_are_whole(self, view):
        homes = Counter(member for shard in view.shards.values() for member in shard.due if member[0] == "s")
        twice = [member for member, count in homes.items() if count > 1]
        if twice and not self.world.losses and not self.world.strays:
            raise Broken("a member is in two places", twice)
        for place, shard in view.shards.items():
            if shard.astray:
                raise Broken("L a member is in two sets, or in that of another lane", place, shard.astray)
            if not shard.due.keys() == shard.point.keys() == shard.gen.keys():
                raise Broken("an entry is not whole", place, shard)
            if not shard.lease.keys() | shard.attempts.keys() <= shard.due.keys():
                raise Broken("something is left of an entry", place, shard)

    def _nobody_is_missing(self, view):
        """I1 in a built shard: every mirrored schedule with a point to come is there, and not beyond that point."""
        if self.world.suspect or self.world.occupied or self.world.false_clock:
            return
        for pk, schedule in view.schedules.items():
            shard = view.shards[schedule.shard]
            if not (schedule.enabled and schedule.mirrored and shard.built):
                continue
            first = view.first_missing(pk)
            if first is None:
                continue
            member = f"s{pk}"
            if member not in shard.due:
                raise Broken("I1 an enabled schedule is absent from Redis", schedule, first)
            # What is due is healed by its next claimer: nobody else may judge it.
            healing = self.world.delayed and shard.point[member] <= self.world.clock.server_ms()
            if shard.point[member] > first and not healing:
                raise Broken("I1 the entry is beyond a point without outcome", schedule, first, shard.point[member])
            if shard.gen[member] != schedule.generation:
                raise Broken("I5 Redis knows another generation than noted", schedule, shard.gen[member])

    def _one_holder(self, view):
        holders = {}
        for stepped in self.world.workers:
            for place, member, fence in stepped.valid():
                if (place, member, fence) in self.world.holders.back:
                    continue
                # What a late request or a loss has put back where it was is dropped by its next claimer.
                row = (view.schedules if member[0] == "s" else view.runs).get(int(member[1:]))
                elsewhere = self.world.losses and (row is None or self.world.tag_of(member, row.queue) != place)
                if (self.world.strays or elsewhere) and not stepped.has_begun(place, member, fence):
                    continue
                other = holders.setdefault(member, (stepped.name, place))
                if other != (stepped.name, place):
                    raise Broken("I3 two valid leases", member, other, stepped.name, place)
                if view.shards[place].lease.get(member) != fence:
                    raise Broken("I3 a valid lease was taken away", stepped.name, member, fence)

    # -- at a start

    def at_begin(self, stepped, held):
        """Check that this task may start now."""
        run, schedule, key = held.outcome.run, held.outcome.schedule, self.world.key_of(held.outcome.run)
        if schedule is None:
            self.world.promises.at_begin(stepped, held)
            self._begins(stepped, held, key)
            return
        trusted = {(member, fence) for _, member, fence in stepped.valid()}
        lease = self.world.tag(held.shard), held.fence
        since_loss = stepped.claimed_since_loss(*lease)
        if stepped.lapsed(held) or (since_loss and (held.member, held.fence) not in trusted):
            raise Broken("I4 started after its lease", stepped.name, held.member)
        view, known = View(self.world), stepped.known.get(lease, {})
        if schedule.pk not in known and not self.world.restores:
            raise Broken("I8 started although it was deleted before the claim", held.member)
        if run.origin == "due" and not schedule.enabled:
            raise Broken("I8 started although it was disabled", held.member)
        if run.origin == "due" and key[2] > self.world.clock.server_ms() and not self.world.false_clock:
            raise Broken("I8 started before it was due", key)
        if schedule.generation < known.get(schedule.pk, 0) and not self.world.restores:
            raise Broken("R1 started with an older definition than at the claim", held.member)
        row = view.row_of(key)
        # A moved entry does not tell any more that its lease had run out: it may begin although an old holder records.
        leased = since_loss and not self.moved[schedule.pk]
        if row is not None and row.final and leased and not self._by_another(row, stepped, lease):
            raise Broken("R2 started after its outcome was recorded", stepped.name, row)
        if (
            run.origin == "due"
            and schedule.pk in self.world.oracle.eras
            and not (self.world.losses or self.world.delayed or self.world.strays)
            and not self.world.oracle.is_point(schedule.pk, key[2])
        ):
            raise Broken("I8 a point of no definition", key, self.world.oracle.eras.get(schedule.pk))
        self._begins(stepped, held, key)
        # A moved entry does not tell any more that its lease had run out.
        self.attempts[schedule.pk] = max(schedule.max_attempts, self.attempts[schedule.pk])
        attempts = self.world.config.max_reclaims + self.attempts[schedule.pk]
        most = attempts + self.world.losses + self.moved[schedule.pk]
        if self.begun[key] > most:
            raise Broken("I7 executed too often", key, self.begun[key], most)

    def _begins(self, stepped, held, key):
        self.begun[key] += 1
        if held not in stepped.slots.taken:
            self.counts(stepped, held)
        self._alone(stepped, held)

    def _by_another(self, row, stepped, lease):
        """Say whether this was recorded after the claim, by somebody who had it before Redis was rolled back."""
        losses = self.world.losses
        return row.pk not in stepped.ended[lease] and self.world.claims.get((lease[0], row.fence), losses) != losses

    def _alone(self, stepped, held):
        """Rule R6: from the second take-over on, nothing runs beside it."""
        others = stepped.slots.begun
        if others and any(item.outcome.run.reclaims >= 2 for item in (held, *others)):
            raise Broken("R6 a suspect does not run alone", stepped.name, held.member, [item.member for item in others])

    def counts(self, stepped, held):
        """Note an execution that a take-over may be counted for: a slot has it, whatever becomes of the worker now."""
        key = self.world.key_of(held.outcome.run)
        self.counted[key] += 1
        self.alone[key] += not stepped.slots.begun and not stepped.slots.entries

    # -- at a write

    def settled(self, request, member, generation, point):
        """Check a settlement that was carried out: nothing undecided lies before the next point (R3, R4, R9)."""
        view = View(self.world)
        schedule = view.schedules.get(int(member[1:])) if member[0] == "s" else None
        if schedule is None or generation < schedule.generation or request.shard != schedule.shard:
            return
        first = view.first_missing(schedule.pk) if schedule.enabled else None
        if first is not None and (point is None or point > first):
            raise Broken("R3 settled beyond a point without outcome", request.owner, schedule, first, point)

    def recorded(self, outcomes, results):
        """Check who won: never somebody who lost his lease to one who is at it, never against one who holds it."""
        seen = self.world.stage.seen
        for outcome, result in zip(outcomes, results, strict=True):
            seen["recorded" if result == "yes" else "refused"] += 1
            seen["handed over"] += outcome.run.separate and outcome.run.status == "queued"
            seen["stretch left by an edit"] += outcome.run.reason == "edited"
            seen["poison"] += outcome.run.reason == "poison"
            job = outcome.run.is_job and result == "yes" and not outcome.repeated
            if job and outcome.run.status not in OPEN:
                self.world.ended(outcome.run)
        if self.world.losses or self.world.restores:
            return
        view = View(self.world)
        for outcome, result in zip(outcomes, results, strict=True):
            run, key = outcome.run, self.world.key_of(outcome.run)
            holder = self.world.executing(key, view)
            # A moved entry does not tell any more that its lease had run out: no row stands against the old holder.
            if run.fence and holder is not None and not (outcome.repeated or self.moved[run.schedule_id]):
                if result == "yes" and holder.fence != run.fence:
                    raise Broken("I4 a stale holder recorded while another executes", key, run.fence, holder.fence)
                # A `running` row goes with its schedule, and that of a job of which nothing is kept with its outcome.
                stands = run.schedule_id in view.schedules
                if run.is_job:  # nor does it wait for this execution any more once it was retried
                    stands = view.row_of(key) is not None and run.fence in self.world.wanted[run.result_id].fences
                if result == "lost" and holder.fence == run.fence and stands:
                    raise Broken("I4 the holder was refused", key, run.fence, view.row_of(key))
            if run.reason == "poison" and result == "yes" and not self.alone[key]:
                raise Broken("R6 an innocent was taken for poison", key)

    def waited_in_vain(self, held):
        """Note that a row says `running` although nothing began: its worker died, or stood still, while it waited."""
        if held.before is not None:
            self.waited.add(self.world.key_of(held.outcome.run))

    def started(self, outcomes, results):
        """R6: every take-over that is counted stands for an execution.

        But for one: a lapsed lease without a row may be that of an execution, and a row that says so may be that of an
        entry which waited in a process that died.
        """
        self.recorded(outcomes, results)
        waiting = {
            self.world.key_of(held.outcome.run) for stepped in self.world.workers for held in stepped.slots.entries
        }
        for outcome, result in zip(outcomes, results, strict=True):
            run, key = outcome.run, self.world.key_of(outcome.run)
            self.world.stage.seen["taken over"] += run.reclaims > 0
            self.world.stage.seen["shown while it runs"] += run.status == "running" and run.reclaims == 0
            most = self.counted[key] + (not run.separate or run.is_job or key in self.waited or key in waiting)
            if result == "yes" and run.is_job:
                item = self.world.wanted[run.result_id]
                item.keyless = item.keyless or not item.until_end
            if result == "yes" and run.reclaims > most and not self.world.restores:
                raise Broken("R6 more take-overs are counted than began", key, run.reclaims, most)

    def undone(self, outcomes):
        """A job that was handed back before it began has its unique key again, but where another job took it."""
        rows = View(self.world).runs
        for run in (outcome.run for outcome in outcomes if outcome.run.is_job):
            item, row = self.world.wanted[run.result_id], rows[run.pk]
            item.keyless = row.unique_key is None
            if item.unique is None or item.holds or item.outcome is not None or item.begun or row.status == "running":
                continue
            if not any(other.holds and other.unique == item.unique for other in self.world.wanted.values()):
                raise Broken("J a job that was handed back lost its unique key", item)

    def swept(self):
        """I5: after a sweep every edit is mirrored, but for moves that wait for a lease to end."""
        view = View(self.world)
        waiting = {member for member, _ in view.tombstones}
        left = [row for row in view.schedules.values() if not row.mirrored and f"s{row.pk}" not in waiting]
        if left and not (self.world.suspect or self.world.occupied or self.world.false_clock):
            raise Broken("I5 the sweep left an edit", left)
        self.world.promises.swept(view)

    # -- once all is quiet

    def is_quiet(self):
        """Say whether nothing waits to be done: also what an edit left is explained by the first claim after it."""
        view, now = self.world.view, self.world.clock.server_ms()
        if any(schedule.effective + LONGEST_GAP_MS > now for schedule in view.schedules.values()):
            return False
        shards = view.shards.values()
        runs = any(member[0] != "s" for shard in shards for member in shard.due)
        waits = runs or view.tombstones or any(shard.lease or shard.attempts or not shard.built for shard in shards)
        return not waits and all(schedule.mirrored for schedule in view.schedules.values())

    def nothing_missing(self):
        """I1: each due point of each definition that was in force has a row, or lies in a skipped stretch."""
        view, now = View(self.world), self.world.clock.server_ms()
        for pk, schedule in view.schedules.items():
            rows = view.chains.get(pk, [])
            for era in self.world.oracle.eras[pk]:
                for point in () if era.unknown else era.points(0, now):
                    if not any(row.due <= point <= row.until for row in rows):
                        raise Broken("I1 a due point without a row", schedule, point, era, rows)
        if not (self.world.losses or self.world.unseen):
            self._owed_points_ran(view)
            self.world.promises.nothing_missing()
            # What a worker handed over when it died waits for a sweep.
            left = [
                run
                for run in view.runs.values()
                if not run.final
                and run.schedule in view.schedules
                and not (run.origin == "due" and run.status == "queued")
            ]
            if left:
                raise Broken("I1 a run without outcome, and no sweep needed", left)

    def _owed_points_ran(self, view):
        for pk, point in self.owed:
            rows = [row for row in view.chains.get(pk, []) if row.due <= point <= row.until]
            if rows and rows[0].reason == "edited":
                raise Broken("R8 a point that was due at the edit was skipped with it", pk, point, rows)

    def at_end(self):
        """Check that nothing is left open or left over, and that Redis holds what the database wants."""
        view = View(self.world)
        self.world.promises.nothing_missing()
        self.world.promises.at_end(view)
        left = [run for run in view.runs.values() if run.status in OPEN]
        if left:
            raise Broken("I1 a run without outcome", left)
        if view.tombstones or not all(schedule.mirrored for schedule in view.schedules.values()):
            raise Broken("I5 not mirrored", view.tombstones, view.schedules)
        for pk, schedule in view.schedules.items():
            first = view.first_missing(pk) if schedule.enabled else None
            shard, member = view.shards[schedule.shard], f"s{pk}"
            entry = (shard.point.get(member), shard.due.get(member), shard.gen.get(member), shard.lease.get(member))
            wanted = (None,) * 4 if first is None else (first, first, schedule.generation, None)
            if entry != wanted:
                raise Broken("I5 Redis does not agree with the database", schedule, entry, wanted)
        members = {member for shard in view.shards.values() for member in shard.due}
        if members - {f"s{pk}" for pk in view.schedules}:
            raise Broken("I5 a member that nothing stands behind", members)
