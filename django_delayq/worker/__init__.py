"""What `manage.py delayq_worker` runs: claim, judge, execute, record, settle. Any number of equal workers."""
