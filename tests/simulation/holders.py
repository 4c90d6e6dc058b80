"""Checks every script call against who holds what: a lease is given once, and only its holder moves the member."""

import json

from django_delayq.index import scripts

from .faults import Broken
from .view import SCORED
from .wire import BY_FENCE, Request, plain

HASHES = ("point", "gen", "lease", "attempts")
#: One step of priority is worth so many ms of waiting.
STEP_MS = 60_000


def bare(holder):
    """Return the fence of a holder, which names the worker too."""
    return holder.partition(" ")[0]


class Holders:
    """What the server has executed, call by call."""

    def __init__(self, world):
        self.world = world
        #: place -> fences given so far, with the claim that got each.
        self.given = {}
        #: (owner, place) -> member -> fence, of a claim whose reply was lost.
        self.lost = {}
        #: (owner, place) -> the highest request that leased something, so that the journal knows it.
        self.journaled = {}
        #: (owner, place) -> the highest request of which the owner knows the reply.
        self.answered = {}
        #: (place, member) -> when another attempt may begin, by the server's clock.
        self.not_before = {}
        #: (place, member, fence) of leases whose holder handed them back.
        self.back = set()
        #: owner -> (place, member) -> fence and monotonic deadline, as its replies tell it.
        self.trusted = {}

    # -- around each call

    def look(self, request):
        """Return what the call may change."""
        client, place = self.world.stage.client, request.shard
        if request.name == "claim":
            self.turns = self._read_turns(place)
            return {plain(m): plain(f) for m, f in client.hgetall(f"{place}:lease").items()}
        return {item[0]: self._state(place, item[0]) for item in request.items()}

    def check(self, request, before, reply, *, late):
        """Compare with what it was before."""
        if request.name == "claim":
            self._check_claim(request, before, reply, late)
            return
        rights = [self._may(request, item, before[item[0]]) for item in request.items()]
        for number, (item, mine) in enumerate(zip(request.items(), rights, strict=True)):
            member, was = item[0], before[item[0]]
            again = any(other[0] == member and right for other, right in zip(request.items(), rights, strict=True))
            now = self._state(request.shard, member)
            if request.name == "upsert" and (was["gen"] or "") < (now["gen"] or ""):
                now["gen"] = was["gen"]  # a newer row is noted under a lease, so that its holder does not drop it
            if not again and now != was:
                raise Broken("I4 a stale request changed something", request.name, member, item, was)
            if mine and request.name == "settle":
                self._check_settled(request, item, json.loads(scripts.decode_text(reply))[number + 2])

    def _check_settled(self, request, item, applied):
        member, fence, what, ms, generation, point = item
        self.back.add((request.shard, member, bare(fence)))
        if what == "retry":
            self.world.stage.seen["attempt failed"] += 1
            self.not_before[(request.shard, member)] = self.world.clock.server_ms() + int(ms)
        elif what in ("next", "drop") and applied == 2:
            self.world.stage.seen["edited under a lease"] += 1
        elif what in ("next", "drop"):
            self.world.invariants.settled(request, member, int(generation), int(point) if what == "next" else None)

    @staticmethod
    def _may(request, item, was):
        """Say whether the sender holds the member, or nobody has it yet."""
        if request.name not in BY_FENCE:
            return was["lease"] in (None, "-")  # what was handed back unstarted has no holder
        return was["lease"] is not None and was["lease"] == item[1]

    def _check_claim(self, request, before, reply, late):
        told = json.loads(scripts.decode_text(reply))
        place, fence, leased = request.shard, told[3], set(told[4::5])
        identity = (request.owner, int(request.args[2]))
        key = (request.owner, place)
        again = self.journaled.get(key, 0) >= identity[1]
        if leased and not told[2]:
            raise Broken("a shard is claimed from that is not rebuilt", place)
        if leased:
            self.world.note_claim(request.owner, place, fence)
        if told[2] and not (late or again):
            self._check_turns(int(request.args[0]), leased)
        if leased and self.given.setdefault(place, {}).setdefault(fence, identity) != identity:
            raise Broken("I3 one fence for two claims", place, fence, self.given[place][fence], identity)
        for member in leased - before.keys():
            early = self.world.clock.server_ms() < self.not_before.pop((place, member), 0)
            moved = member[0] == "s" and self.world.invariants.moved[int(member[1:])]  # which ends the delay
            gone = member[0] == "s" and int(member[1:]) not in self.world.oracle.eras  # put back late, to be dropped
            if early and not (moved or gone or self.world.losses or self.world.strays):
                raise Broken("another attempt comes before its delay is over", place, member)
        if leased:
            self.journaled[key] = max(identity[1], self.journaled.get(key, 0))
        if late and again and request.losses == self.world.losses and self.look(request) != before:
            raise Broken("I3 a late claim leased something for nobody", place, before, self.look(request))
        if late and not again and identity[1] > self.answered.get(key, 0):
            self.reply_was_lost(request, reply)
        if not late and told[2]:  # nothing is told of a shard that was flushed
            for member, lost in self.lost.pop(key, {}).items():
                if before.get(member) == lost and member not in leased:
                    raise Broken("R: leases of a lost reply are forgotten", request.owner, member)

    def reply_was_lost(self, request: Request, reply):
        """Note what a worker was given without knowing it."""
        if request.name == "claim":
            told = json.loads(scripts.decode_text(reply))
            self.lost[(request.owner, request.shard)] = dict.fromkeys(told[4::5], f"{told[3]} {request.owner}")

    def reply_arrived(self, request, reply):
        """Note that its sender knows the reply, and what it may trust from now on."""
        trusted = self.trusted.setdefault(request.owner, {})
        if request.name == "claim":
            self.answered[(request.owner, request.shard)] = int(request.args[2])
            told = json.loads(scripts.decode_text(reply))
            lease = told[3], request.sent + int(request.args[1]) / 1000
            trusted.update(((request.shard, member), lease) for member in told[4::5])
        elif request.name == "renew":
            lost = set(map(plain, reply))
            for member, holder in request.items():
                fence = bare(holder)
                known = trusted.get((request.shard, member))
                if known is not None and known[0] == fence:
                    trusted[(request.shard, member)] = fence, request.sent + int(request.args[0]) / 1000
                if member in lost:
                    trusted.pop((request.shard, member), None)

    def _state(self, place, member):
        pipeline = self.world.stage.client.pipeline(transaction=False)
        for part in SCORED:
            pipeline.zscore(f"{place}:{part}", member)
        for part in HASHES:
            pipeline.hget(f"{place}:{part}", member)
        values = (None if value is None else plain(value) for value in pipeline.execute())
        return dict(zip((*SCORED, *HASHES), values, strict=True))

    # -- turns: see Note [Two lanes per claim] in index/lua/_prelude.lua

    def _read_turns(self, place):
        """Return what is due of each lane, as (turn, member)."""
        now, found = self.world.clock.server_ms(), []
        pipeline = self.world.stage.client.pipeline(transaction=False)
        for part in SCORED:
            pipeline.zrange(f"{place}:{part}", 0, -1, withscores=True)
        pipeline.hgetall(f"{place}:priority")
        *sets, steps = pipeline.execute()
        for waiting, ready in (sets[:2], sets[2:]):
            due = [(score - STEP_MS * int(steps.get(name, 0)), plain(name)) for name, score in waiting if score <= now]
            for name, turn in ready:
                if turn + STEP_MS * int(steps.get(name, 0)) > now and not self.world.false_clock:
                    raise Broken("L a member has not its turn", name, turn, now)
            found.append(sorted(due + [(turn, plain(name)) for name, turn in ready]))
        return found

    def _check_turns(self, limit, leased):
        """Both lanes get their share, and in each what is more urgent comes first."""
        points, jobs = self.turns
        shares = [len(leased & {member for _, member in lane}) for lane in (points, jobs)]
        half = limit // 2
        enough = min(limit, len(points) + len(jobs))
        if sum(shares) != enough or shares[0] < min(len(points), half) or shares[1] < min(len(jobs), half):
            raise Broken("L a lane did not get its share", limit, shares, len(points), len(jobs))
        for lane in self.turns:
            last = max((turn for turn, member in lane if member in leased), default=0)
            for turn, member in lane:
                if member not in leased and turn < last:
                    raise Broken("L a more urgent member was left", member, turn, last)
