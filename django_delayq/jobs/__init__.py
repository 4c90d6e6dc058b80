"""What a job is: its name, its task, its options, and its text in Redis. Reads no server and no database."""

from ..context import JobContext
from .attempts import attempts_of, note_cancelled, note_failed, note_lost, note_running, revived
from .callbacks import Callback, after_job, after_run, callbacks_of
from .ids import MAX_QUEUE, is_member, key_hash, new_members, parse_id, result_id
from .options import Options, Retries
from .record import (
    IN_DATABASE,
    Call,
    CallLine,
    State,
    bare,
    decode,
    decode_lines,
    decode_state,
    encode,
    encode_state,
    trace_of,
    with_trace,
)
from .results import JobResult, as_called, as_result
from .task import DelayQTask

__all__ = [
    "IN_DATABASE", "MAX_QUEUE", "Call", "CallLine", "Callback", "DelayQTask", "JobContext", "JobResult", "Options",
    "Retries", "State", "after_job", "after_run", "as_called", "as_result", "attempts_of", "bare", "callbacks_of",
    "decode", "decode_lines", "decode_state", "encode", "encode_state", "is_member", "key_hash", "new_members",
    "note_cancelled", "note_failed", "note_lost", "note_running", "parse_id", "result_id", "revived", "trace_of",
    "with_trace",
]  # fmt: skip
