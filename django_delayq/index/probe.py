"""Judges a server's fitness, for workers and for `check --deploy`. `engine.py` collects the facts.

Note [Refuse or warn]
A worker refuses a server that would silently lose or falsify due points later: one that evicts keys, or does not run
the scripts as required. It warns once, in its log, of problems without immediate cost or certainty. The rest (no
persistence: workers rebuild) is left to `check --deploy`.

Workers examine servers at start, and again when a run id changes: the server was restarted, or a replica with another
version, other settings or other users replaced it. A refusal at that time is a drain: running tasks are still
recorded.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import NamedTuple

from .. import conf
from ..exceptions import BrokerError
from .broker import EXACT, Broker
from .engine import Look, look, run_ids

logger = logging.getLogger("django_delayq.worker")

#: Maximum difference between clocks, in seconds, that is not reported.
CLOCK_SECONDS = 1.0


class UnfitServer(BrokerError):
    """A server that must not be used: it evicts keys, or does not run the scripts as required."""


class Finding(NamedTuple):
    """A problem of a server. `id` is that of the system check: workers refuse E and warn of W."""

    id: str
    message: str
    hint: str

    @property
    def level(self) -> str:
        return self.id.partition(".")[2][0]

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


def examine(broker: Broker, said: set[str]) -> str:
    """Examine the servers; return their run ids. Log each warning whose id is not in `said`, and add it.

    Raises:
        UnfitServer: A server is not fit; the message says what to do.
        BrokerUnavailable: A server does not answer.
        BrokerError: The login is refused, or a server cannot write to its disk.
    """
    looks = look(broker)
    found = findings(looks)
    for finding in found:
        if finding.level == "E":
            raise UnfitServer(str(finding))
    for finding in found:
        if finding.id not in said and finding.id not in conf.silenced_checks():
            logger.warning("%s (%s)", finding, finding.id)
        said.add(finding.id)
    return run_ids(each.about for each in looks)


def findings(looks: Iterable[Look]) -> list[Finding]:
    """Return the problems of the servers; each id once, for the first server that has it."""
    looks = list(looks)
    found = [*(finding for each in looks for finding in _server(each)), *_clocks(looks)]
    return list({finding.id: finding for finding in reversed(found)}.values())[::-1]


def _server(each: Look) -> Iterator[Finding]:
    server = _called(each)
    policy = each.about.get("maxmemory_policy")
    if policy is None:
        yield Finding(
            "delayq.W002",
            f"{server} does not tell whether it evicts keys.",
            "Let this user run INFO, or see yourself that its maxmemory-policy is noeviction.",
        )
    elif policy != "noeviction":
        yield Finding(
            "delayq.E004",
            f"{server} has maxmemory-policy {policy!r} and would evict schedules.",
            "Set it to noeviction (redis.conf or CONFIG SET maxmemory-policy noeviction), or use another server.",
        )
    wrong = _misbehaves(each)
    if wrong:
        yield Finding(
            "delayq.E004",
            f"{server} does not run the scripts of django-delayq as it must: {wrong}",
            "Use Redis 6.2 or later, or Valkey; let this user run EVAL, EVALSHA and the commands of the scripts (ACL), "
            "and do not rename commands.",
        )


def _misbehaves(each: Look) -> str:
    """Return how a server deviates from what the scripts need, '' if it does not."""
    if each.refusal:
        return each.refusal
    before, after = each.clock_us
    if before == after:
        return "its TIME stands still."
    trial = each.trial
    if trial is None:
        return ""
    if trial.refused:
        return trial.refused[0].rstrip(".") + "."
    if (trial.number, trial.score, trial.member, trial.value) != (str(EXACT), str(EXACT), "m", str(EXACT)):
        return f"{EXACT} comes back as {trial.number}, as a score {trial.score}, in a hash {trial.value}."
    if not before - CLOCK_SECONDS * 1e6 <= trial.clock_us <= after + CLOCK_SECONDS * 1e6:
        return f"TIME in a script is {abs(trial.clock_us - after) / 1e6:.1f} s off TIME itself."
    return ""


def _clocks(looks: list[Look]) -> Iterator[Finding]:
    """Compare the clocks. The duration of a round trip never counts as a difference."""
    hint = "Have both follow NTP: Redis' clock says when something is due, this machine's when an edit takes effect."
    for each in looks:
        least, most = each.ahead_seconds
        if least > CLOCK_SECONDS or most < -CLOCK_SECONDS:
            off = f"{least:.1f} s ahead of" if least > CLOCK_SECONDS else f"{-most:.1f} s behind"
            yield Finding("delayq.W003", f"The clock of {_called(each)} is {off} this machine's.", hint)
    for one, other in permutations(looks, 2):
        apart = one.ahead_seconds[0] - other.ahead_seconds[1]
        if apart > CLOCK_SECONDS:
            yield Finding(
                "delayq.W003",
                f"The clocks of {_called(one)} and {_called(other)} are {apart:.1f} s apart.",
                "Have all nodes follow NTP: each one's clock says when something on it is due.",
            )


def _called(each: Look) -> str:
    name = "Valkey" if "valkey_version" in each.about else "Redis"
    version = each.about.get("valkey_version", each.about.get("redis_version", ""))
    return " ".join(part for part in (name, version, each.name and f"at {each.name}") if part)
