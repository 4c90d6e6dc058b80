"""The fault suite: each fault is produced for real, and an oracle without opinions looks at the ledger afterwards.

`pytest tests/faults -m quick` plays every fault in one or a few of its variants; a plain `pytest`, and so CI, all but
those marked `long`. `python -m tests.faults --minutes 20 --workers 6` is the soak.
"""
