"""What `delayq_worker --processes N` adds to a worker: a parent process that starts and stops N complete workers."""
