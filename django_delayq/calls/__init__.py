"""A job's task, options, call and result. Connects to no server and no database."""

from .call import Call, call_of
from .context import JobContext
from .results import TOO_LARGE, JobResult, as_called, key_hash, new_tokens, parse_id, result_id, result_of
from .task import DelayQTask
from .task_options import Options, Retries

__all__ = [
    "TOO_LARGE", "Call", "DelayQTask", "JobContext", "JobResult", "Options", "Retries", "as_called", "call_of",
    "key_hash", "new_tokens", "parse_id", "result_id", "result_of",
]  # fmt: skip
