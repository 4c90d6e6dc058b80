"""The fault suite: each fault is produced for real, and an oracle without opinions looks at the ledger afterwards.

`pytest tests/faults -m quick` is what CI runs; `python -m tests.faults --minutes 20 --workers 6` is the long form.
"""
