"""Dead jobs by task and error, durable ones from the database and plain ones from Redis."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..backend.listing import SeenJob
from ..history import title_of
from .fingerprint import digest_of, fingerprint


@dataclass(slots=True)
class JobGroup:
    """Dead jobs of one task with one fingerprint, what died last first. `task` is '' where a text cannot be read."""

    digest: str
    task: str
    text: str
    jobs: list[SeenJob] = field(default_factory=list)


def group_dead(jobs: Iterable[SeenJob]) -> list[JobGroup]:
    """Return these dead jobs in groups, in the order of the first of each."""
    groups: dict[str, JobGroup] = {}
    for seen in jobs:
        task, text = _said(seen)
        digest = digest_of("job", task, text)
        groups.setdefault(digest, JobGroup(digest, task, text)).jobs.append(seen)
    return list(groups.values())


def _said(seen: SeenJob) -> tuple[str, str]:
    """Return the task of a job, and the fingerprint of its last error; what is wrong with a text that nobody reads."""
    if seen.call is None or seen.record is None:
        return "", str(seen.flaw or "")
    return seen.call.task, fingerprint(title_of(*seen.record.errors[-1]) if seen.record.errors else "")
