"""What failed of late, grouped by task and error: runs and jobs of the ledger. Knows no admin; shows nothing."""

from .fingerprint import digest_of, fingerprint
from .runs import NEW, Failures, RunGroup, dismiss, group_failures, read_failures, take_back

__all__ = [
    "NEW", "Failures", "RunGroup", "digest_of", "dismiss", "fingerprint", "group_failures", "read_failures",
    "take_back",
]  # fmt: skip
