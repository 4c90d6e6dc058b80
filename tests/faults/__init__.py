"""The fault suite: each fault is produced for real, and an oracle without opinions looks at the ledger afterwards.

A plain `pytest` plays those marked `smoke`, one for each family of faults; CI all but those marked `long`.
`python -m tests.faults --minutes 20 --workers 6` is the soak.
"""
