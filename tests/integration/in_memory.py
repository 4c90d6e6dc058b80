"""One shard in memory, seeded and read as `shard.py` does it in Redis: the same tests are for both."""

from django_delayq.testing.memory import MemoryIndex, Standing
from tests.integration.shard import LEASE_MS, PLACE, begin

PARTS = {
    "due": "wake_ms", "point": "point_ms", "gen": "generation", "lease": "holder", "attempts": "attempts",
    "priority": "priority",
}  # fmt: skip


class MemoryShard:
    """See `SeededShard`."""

    epoch = "memory"

    def __init__(self):
        self.broker = MemoryIndex("test")
        self.now = begin(self.broker)

    def seed(self, **parts):
        for part, values in parts.items():
            for member, value in values.items():
                item = self.broker.members.setdefault((PLACE, member), Standing(wake_ms=0, point_ms=0, generation=0))
                value = value if part == "lease" else int(value)
                setattr(item, PARTS[part], self.now + value if part in ("due", "point") else value)

    def member(self, name, due=-1000, gen=7, **hashes):
        self.seed(due={name: due}, point={name: due}, gen={name: gen}, **{k: {name: v} for k, v in hashes.items()})

    def held(self, *names):
        for name in names:
            self.member(name, due=LEASE_MS, lease="f")

    def state(self):
        found = {part: {} for part in PARTS}
        for (_, member), item in self.broker.members.items():
            found["due"][member], found["point"][member] = item.wake_ms - self.now, item.point_ms - self.now
            found["gen"][member] = str(item.generation)
            for part in ("lease", "attempts", "priority"):
                if value := getattr(item, PARTS[part]):
                    found[part][member] = str(value)
        return {part: values for part, values in found.items() if values}

    def claim(self, request=1, limit=100, lease_ms=LEASE_MS):
        return self.broker.claim(PLACE, limit=limit, lease_ms=lease_ms, request=request)
