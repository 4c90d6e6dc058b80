"""One shard of a test's own prefix: seeded and read past the scripts. Times are ms relative to the server's clock at
the test's start, and some have moved on by what the test has taken since.
"""

import itertools
import math
import time

from django_delayq.index import Broker, Shard, keys
from django_delayq.index import broker as broker_module
from tests.acceptance.support import PATIENCE_SECONDS

PLACE = Shard("default", 0)
LEASE_MS = 30_000
HASHES = ("point", "gen", "priority", "lease", "attempts")
_began = 0.0


def begin(broker):
    """Return the server's time, from which on the times of this test count."""
    global _began
    _began = time.monotonic()
    return broker.read_now_ms()


class about:
    """Equal to a number of ms that the server's clock has moved on by no more than the test has taken until now."""

    def __init__(self, ms):
        self.ms = ms

    def __eq__(self, other):
        return other is not None and self.ms <= other <= self.ms + math.ceil((time.monotonic() - _began) * 1000) + 1

    def __repr__(self):
        return f"about {self.ms}"


def listening(broker, names):
    """Subscribe; return a function that gives the hints (place, ms) that were sent since it was last asked."""
    hints = broker.receive_hints(timeout_seconds=PATIENCE_SECONDS)
    assert next(hints) is None, "it is subscribed"
    last = (Shard("last", 0), 0)

    def come():
        say = "return redis.call('publish', ARGV[1], ARGV[2])"  # by the shard's server, behind what that has said
        broker.client.eval(say, 1, names["due"], broker._channel, f"{last[0]} {last[1]}")
        return list(itertools.takewhile(lambda hint: hint != last, hints))

    come.close = hints.close
    return come


def names_of(claim):
    """Return the members of a claim in their order."""
    return [entry.member for entry in claim.entries]


class SeededShard:
    """One shard, seeded and read past the scripts. Numbers in `due` and `point` are relative to `now`."""

    epoch = "e1"

    def __init__(self, broker):
        self.broker, self.client, self.now = broker, broker.client, begin(broker)
        self.names = keys.build_keys(broker.config.prefix, PLACE, broker.worker)
        self.client.set(self.names["epoch"], "e1")

    def seed(self, **parts):
        for part, values in parts.items():
            if part in ("due", "point"):
                values = {member: self.now + at if isinstance(at, int) else at for member, at in values.items()}
            if part == "due":
                for member, score in values.items():
                    self.client.zadd(self.names["jobs" if member.startswith("j") else "due"], {member: score})
            elif part in HASHES:
                self.client.hset(self.names[part], mapping=values)
            else:
                self.client.set(self.names[part], values)

    def member(self, name, due=-1000, gen=7, **hashes):
        """Seed a complete entry whose point is its score."""
        self.seed(due={name: due}, point={name: due}, gen={name: gen}, **{k: {name: v} for k, v in hashes.items()})

    def state(self):
        """Return every structure that is not empty, with relative times and text.

        `due` is that of both lanes, with the points of what waits for its turn.
        """
        found = {"due": self._scores("due", "jobs")}
        for part in HASHES:
            values = self.client.hgetall(self.names[part])
            found[part] = {broker_module.decode_text(k): broker_module.decode_text(v) for k, v in values.items()}
        found["point"] = {name: int(value) - self.now for name, value in found["point"].items()}
        found["due"] |= {name: found["point"][name] for name in self.turns()}
        return {part: values for part, values in found.items() if values}

    def turns(self):
        """Return the turns, as relative times, of what waits for them."""
        return self._scores("ready", "jobs-ready")

    def _scores(self, *parts):
        scores = [pair for part in parts for pair in self.client.zscan_iter(self.names[part])]
        return {broker_module.decode_text(name): score - self.now for name, score in scores}

    def claim(self, request=1, limit=100, lease_ms=LEASE_MS, worker=None):
        broker = self.broker if worker is None else Broker(timeout_seconds=5, worker=worker)
        return broker.claim(PLACE, limit=limit, lease_ms=lease_ms, request=request)

    def held(self, *names):
        """Seed complete entries that are leased under the fence `f`."""
        for name in names:
            self.member(name, due=LEASE_MS, lease="f")
