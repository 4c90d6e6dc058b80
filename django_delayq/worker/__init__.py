"""The worker behind `manage.py delayq_worker`: claim, judge, execute, record, settle. All workers are equal."""
