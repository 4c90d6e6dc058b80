"""What failed of late, grouped by task and error: runs and jobs of the ledger. Knows no admin; shows nothing."""

from .dismissing import dismiss, read_dismissals, take_back
from .fingerprint import digest_of, fingerprint
from .runs import NEW, Failures, RunGroup, group_failures, read_failures

__all__ = [
    "NEW", "Failures", "RunGroup", "digest_of", "dismiss", "fingerprint", "group_failures",
    "read_dismissals", "read_failures", "take_back",
]  # fmt: skip
