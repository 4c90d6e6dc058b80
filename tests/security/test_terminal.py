"""What Redis and people say reaches a terminal or a log as text: it moves no cursor, forges no line, ends nothing."""

import io
import json
import logging
import subprocess
import sys

import pytest

from django_delayq.models import Schedule, ScheduleState
from django_delayq.text import escape_text
from django_delayq.worker.logs import JsonFormatter, LineFormatter
from tests.acceptance.support import PATIENCE_SECONDS, ROOT, command_environment
from tests.integration.admin_pages import LIST
from tests.integration.shard import PLACE
from tests.support import run_burst

HOSTILE = b"\xff\x1b]0;owned\x07\x1b[2J\r\nforged line\x9b2J\xe2\x80\xae\xe2\x80\xa8end"
NAMED = HOSTILE[1:].decode("latin-1")


#: Plays commands in turn, each as its own process would: an interpreter takes longer than any of them.
IN_TURN = """
import sys
from django.core.management import execute_from_command_line
for words in {!r}:
    try:
        execute_from_command_line(["django", *words])
    except SystemExit:
        pass
    sys.stderr.flush()
    print({!r}, flush=True)
"""
END = "-- that was all of it --"


def shown(*commands):
    """Return what each of these commands writes, played in turn by a process of their own."""
    told = subprocess.run(
        [sys.executable, "-c", IN_TURN.format(commands, END)],
        env={**command_environment(), "PYTHONIOENCODING": "utf-8:strict"}, cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    *texts, rest = told.stdout.decode().split(END)
    assert len(texts) == len(commands), rest
    return texts


def is_plain(text):
    return not any(escape_text(character) != character for character in text if character != "\n")


@pytest.fixture
def hostile(broker):
    """A prefix in which every name is hostile, and a schedule with such a name."""
    run_burst()
    row = Schedule.objects.create(name=NAMED, task="tests.app.tasks.fail", kind="cron", cron="0 9 * * *")
    ScheduleState.objects.filter(schedule=row).update(condition="broken", condition_reason=NAMED, failing_streak=3)
    prefix, now = broker.config.prefix, broker.read_now_ms()
    broker.client.zadd(f"{prefix}:workers", {HOSTILE: now})
    details = json.dumps({"queues": ["default", HOSTILE.decode("latin-1")], "started": 1})
    broker.client.hset(f"{prefix}:worker-details", HOSTILE, details)
    broker.client.zadd(f"{{{prefix}:{PLACE}}}:due", {HOSTILE: now})
    return row


ASK = ["delayq_status --timeout 60", "delayq_status --json --timeout 60", "delayq_status 1", "delayq_sync --dry-run"]


@pytest.mark.parametrize("commands", [[*ASK, "delayq_sync"], ["delayq_worker --burst"]], ids=["asked", "worked"])
@pytest.mark.django_db(transaction=True)
def test_a_command_shows_hostile_names_as_text(hostile, commands):
    """The last one of each row mends what is hostile."""
    commands = [[str(hostile.pk) if word == "1" else word for word in text.split()] for text in commands]
    for words, said in zip(commands, shown(*commands), strict=True):
        assert "Traceback" not in said, words
        assert "end" in said, f"the name was shown at all by {words}"
        assert is_plain(said), (words, ascii(said))
        assert not any(line.startswith("forged") for line in said.splitlines()), words


@pytest.mark.django_db(transaction=True)
def test_the_admin_shows_bytes_that_are_no_text(hostile, boss):
    page = boss.get(LIST)
    assert page.status_code == 200
    for address in (f"{LIST}{hostile.pk}/change/", f"{LIST}{hostile.pk}/pause/"):
        assert boss.get(address).status_code == 200


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()], ids=["line", "json"])
def test_a_log_line_is_one_line_of_text(formatter):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    name = HOSTILE.decode("utf-8", "surrogateescape")
    record = logging.LogRecord("x", logging.ERROR, "", 0, "what %s did", (name,), None)
    stream.write(formatter.format(record) + "\n")
    written = stream.buffer.getvalue().decode()
    assert is_plain(written), ascii(written)
    assert written.count("\n") == 1
    assert "end did" in written


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Bericht für José\u00a0– 日本 👩‍💻 می‌خواهم", None),
        ("a\x1b[2Jb", "a\\u001b[2Jb"),
        ("a\nb\tc", "a\\u000ab\\u0009c"),
        ("a\udcffb", "a\\udcffb"),
        ("a\u202eb\u2028c\x9bd", "a\\u202eb\\u2028c\\u009bd"),
        ("", None),
    ],
)
def test_plain_text_is_left_alone_and_the_rest_is_written_out(text, wanted):
    assert escape_text(text) == (text if wanted is None else wanted)
    assert escape_text(escape_text(text)) == escape_text(text)
