"""What `delayq_worker --processes N` adds to a worker: a parent that starts and stops N whole workers."""
