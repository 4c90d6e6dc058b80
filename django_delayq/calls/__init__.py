"""A job's task, options, call and result. Connects to no server and no database."""

from .call import Call, build_call
from .context import JobContext
from .results import TOO_LARGE, JobResult, build_result, format_id, generate_tokens, hash_key, parse_id, restore_task
from .task import DelayQTask
from .task_options import Options, Retries

__all__ = [
    "TOO_LARGE", "Call", "DelayQTask", "JobContext", "JobResult", "Options", "Retries", "build_call", "build_result",
    "format_id", "generate_tokens", "hash_key", "parse_id", "restore_task",
]  # fmt: skip
