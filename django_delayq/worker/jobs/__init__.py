"""Jobs in the worker: claimed, read, executed and settled apart from due points, in the same slots."""
