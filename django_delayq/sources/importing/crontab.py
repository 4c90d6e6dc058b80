"""A user's or the system's crontab. Commands are not tasks, except `manage.py COMMAND`, which a task of ours runs."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from getopt import GetoptError, getopt
from pathlib import PurePath

from ...calls.commands import COMMAND_TASK
from ...recurrence.dialect import MACROS
from .command_lines import Word, hide_secrets, read_line
from .entry import ImportedEntry, ReadOptions, Refused, find_local_zone, read_entry, read_text

_SETTING = re.compile(r"\s*(?P<name>[A-Za-z_]\w*|\"[A-Za-z_]\w*\"|'[A-Za-z_]\w*')\s*=\s*(?P<value>.*?)\s*$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SHELLS = ("sh", "bash", "dash", "ash", "ksh")
#: Programs that may precede `manage.py`: short and long options in the form of `getopt`, and operands after them.
_WRAPPERS: dict[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "env": ("iu:C:", ("ignore-environment", "unset=", "chdir="), ()),
    "nice": ("n:0123456789", ("adjustment=",), ()),
    "ionice": ("c:n:t", ("class=", "classdata=", "ignore"), ()),
    "timeout": ("k:s:v", ("kill-after=", "signal=", "foreground", "preserve-status", "verbose"), (r"[\d.]+[smhd]?",)),
    "poetry": ("qnC:P:", ("quiet", "no-interaction", "directory=", "project="), ("run",)),
    "pipenv": ("q", ("quiet",), ("run",)),
    "uv": ("q", ("quiet", "offline", "directory=", "project="), ("run",)),
    "uv run": ("qp:", ("quiet", "frozen", "locked", "no-sync", "no-dev", "env-file=", "with=", "python="), ()),
    "flock": (
        "xenoFw:E:",
        ("exclusive", "nonblocking", "nb", "wait=", "timeout=", "conflict-exit-code=", "close", "no-fork", "verbose"),
        (".+",),
    ),
    "python": ("bBdEIOPqsSuvxW:X:m:", (), ()),
}  # fmt: skip
_SYSTEM_FILES = ("/etc/crontab", "/etc/cron.d/")


def read(source: str, options: ReadOptions) -> Iterator[ImportedEntry]:
    system = source.startswith(_SYSTEM_FILES) if options.system is None else options.system
    settings: dict[str, str] = {}
    locks: dict[str, list[ImportedEntry]] = defaultdict(list)
    entries = []
    for line in read_text(source).split("\n"):
        if not line.strip() or line.lstrip(" \t").startswith("#"):
            continue
        if found := _SETTING.fullmatch(line):
            settings[found["name"].strip("\"'")] = found["value"].strip("\"'")
            continue
        shown = hide_secrets(line.strip())
        entries.append(read_entry(shown[:200], shown, _fill, line, system, settings, options, locks))
    for lock, sharing in locks.items():
        for entry in sharing:
            if others := ", ".join(repr(other.name) for other in sharing if other is not entry):
                entry.notes.append(
                    f"its lock {lock} is shared with {others}: overlap concerns only runs of one schedule"
                )
    yield from entries


def _fill(
    entry: ImportedEntry,
    line: str,
    system: bool,
    settings: dict[str, str],
    options: ReadOptions,
    locks: dict[str, list[ImportedEntry]],
) -> None:
    if line.endswith("\r"):
        raise Refused(
            "It ends with a carriage return, which cron makes a part of the command. Convert the file to \\n."
        )
    when, command = _split(line, system)
    command = _unescape(command)
    if zone := settings.get("CRON_TZ"):
        entry.notes.append("CRON_TZ is followed, as cronie does; Debian's cron ignores it")
    else:
        zone = find_local_zone(entry, options, "cron")
    if settings.get("MAILTO"):
        entry.notes.append(f"its output was mailed to {settings['MAILTO']}: see Failures in the admin")
    entry.set_cron(when, zone)
    entry.values["overlap"] = "allow"
    read_command(entry, command, settings.get("SHELL", "sh"), locks)
    entry.name, entry.numbered = hide_secrets(shlex.join(entry.args) or command)[:190], True


def _split(line: str, system: bool) -> tuple[str, str]:
    text = line.lstrip(" \t").removeprefix("-")  # cronie: "-" disables logging
    count = 1 if text.startswith("@") else 5
    parts = re.split("[ \t]+", text, maxsplit=count + system)
    if len(parts) <= count + system or not parts[-1]:
        form = "user form; --system means that it has a column for the user" if not system else "system form"
        raise Refused(f"This line is not an entry of a crontab in {form}.")
    when = " ".join(parts[:count])
    if when == "@reboot":
        raise Refused("@reboot: workers start at any time, and there are many. Call it where the project is started.")
    if when.startswith("@") and when.upper() not in MACROS:
        raise Refused(f"{when} is not a known macro: {', '.join(sorted(name.lower() for name in MACROS))}.")
    if "~" in when:
        raise Refused(f"{when!r}: a random time (~) would be another one for each worker. Write H, such as H(0-29).")
    return when, parts[-1]


def _unescape(command: str) -> str:
    """Return a command as cron passes it to the shell: `%` begins its input, and `\\%` is a percent sign."""
    parts = re.split(r"(\\.)", command)
    if any("%" in part for part in parts[::2]):
        raise Refused(f"The command is given input by %: {hide_secrets(command)!r}. Put it into a task.")
    return "".join("%" if part == "\\%" else part for part in parts)


def read_command(entry: ImportedEntry, command: str, shell: str, locks: dict[str, list[ImportedEntry]]) -> None:
    """Set the call of `manage.py`, or the reason why there is none."""
    entry.task, entry.command = COMMAND_TASK, command
    shown = hide_secrets(command.strip(" \t"))
    try:
        if PurePath(shell).name not in _SHELLS:
            raise Refused(f"Its SHELL is {shell}, whose words are not known here")
        entry.args = _read_call(entry, command, locks)
    except Refused as error:
        entry.no_task = (
            f"{error}: {shown!r}. Write a @task that does it, and say which: --map '{shown}=app.tasks.name'."
        )


def _read_call(entry: ImportedEntry, line: str, locks: dict[str, list[ImportedEntry]]) -> list[str]:
    """Find `manage.py` or its equivalent after programs that do not change what it does; return what follows."""
    words, left_out = read_line(line)
    _refuse_special(words, "$~")
    if left_out:
        entry.notes.append(f"left out: {', '.join(left_out)}")
    texts = rest = [word.text for word in words]
    while rest:
        if _ASSIGNMENT.fullmatch(rest[0]):
            rest = rest[1:]
            continue
        name, rest = PurePath(rest[0]).name, rest[1:]
        if name in ("manage.py", "django-admin"):
            break
        options, operands, rest = _read_options("python" if name.startswith("python") else name, rest, texts)
        if "-m" in options:
            if options["-m"] == "django":
                break
            raise Refused(f"python -m {options['-m']} runs it")
        if name == "flock":
            locks[operands[0]].append(entry)
            _set_overlap(entry, options)
            if rest[:1] in (["-c"], ["--command"]) and len(rest) == 2:
                return _read_call(entry, rest[1], locks)
    if not rest or rest[0].startswith("-"):
        raise Refused("It names no management command")
    begin = len(words) - len(rest)
    _refuse_special(words[begin:], "")
    if runners := [text for text in texts[:begin] if not re.match("python|manage.py|-m$", PurePath(text).name)]:
        entry.notes.append(f"left out: {' '.join(runners)}")
    return rest


def _refuse_special(words: Sequence[Word], allowed: str) -> None:
    for word in words:
        if harmful := word.special.strip(allowed):
            raise Refused(f"It needs a shell, for {harmful[0]!r} in {hide_secrets(word.text)!r}")


def _read_options(name: str, words: list[str], texts: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the options and operands of a program that runs a command, and the words of that command."""
    if name not in _WRAPPERS:
        is_django = any(PurePath(text).name in ("manage.py", "django-admin") for text in texts)
        raise Refused(f"{name} runs it" if is_django else "A command is not a task")
    short, long, patterns = _WRAPPERS[name]
    try:
        options, rest = getopt(words, short, long)
    except GetoptError as error:
        raise Refused(f"{name}: {error}") from None
    operands, rest = rest[: len(patterns)], rest[len(patterns) :]
    if len(operands) < len(patterns) or not all(map(re.fullmatch, patterns, operands)):
        raise Refused(f"{name} runs it")
    return _read_options("uv run", rest, texts) if name == "uv" else (dict(options), operands, rest)


def _set_overlap(entry: ImportedEntry, options: dict[str, str]) -> None:
    """Choose the overlap that matches `flock`."""
    limit = next((options[name] for name in ("-w", "--wait", "--timeout") if name in options), None)
    try:
        waits = limit is None or float(limit) > 0
    except ValueError:
        raise Refused(f"flock waits for {limit!r}, not for a number of seconds") from None
    if options.keys() & {"-n", "--nonblocking", "--nb"} or not waits:
        overlap, note = "skip", "flock gives up while the command is busy: so does overlap 'skip'"
    elif limit is None:
        overlap, note = "queue_all", "flock waits while the command is busy: so does overlap 'queue_all'"
    else:
        overlap = "queue_one"
        note = (
            f"flock waits for {limit} s and gives up then; overlap 'queue_one' waits without a limit, and runs the "
            "newest of the points that came due"
        )
    entry.values["overlap"] = overlap
    entry.notes.append(note)
