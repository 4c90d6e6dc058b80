"""A crontab, of a user or of the system. Its commands are no tasks: `manage.py COMMAND` is run by one of ours."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import PurePath

from ..commands import COMMAND_TASK
from ..timing.dialect import MACROS
from .entry import Entry, Options, Refused, guarded, local_zone, read_text

DIFFERS = (
    "cron starts a command although the last one is still busy: so does overlap 'allow', which is set here, but for "
    "flock.",
    "cron makes up for nothing when the machine was off: here the newest missed point runs (missed); 'skip' runs none.",
    "A fixed time that does not exist, or comes twice, runs once, as with cron.",
    "The command runs with the worker's environment, user and folder; output is kept in the run, not mailed.",
)
_SETTING = re.compile(r"\s*(?P<name>[A-Za-z_]\w*|\"[A-Za-z_]\w*\"|'[A-Za-z_]\w*')\s*=\s*(?P<value>.*?)\s*$")
#: Where output goes, at the end of a command.
_OUTPUT = re.compile(r"(?:\s*(?:\d|&)?>>?\s*(?:&\d|[^\s'\"|;&<>]+))+\s*$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OPERATORS = re.compile(r"[|&;<>()]+")
#: What may stand before `manage.py` without changing what it does.
_WRAPPERS = {"env", "exec", "nice", "ionice", "flock", "timeout", "chronic", "poetry", "pipenv", "uv", "run", "time"}
_SYSTEM_FILES = ("/etc/crontab", "/etc/cron.d/")


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    system = source.startswith(_SYSTEM_FILES) if options.system is None else options.system
    settings: dict[str, str] = {}
    names: Counter[str] = Counter()
    for line in read_text(source).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if set_ := _SETTING.fullmatch(line):
            settings[set_["name"].strip("\"'")] = set_["value"].strip("\"'")
            continue
        yield guarded(line.strip()[:200], line.strip(), partial(_entry, line, system, settings, names, options))


def _entry(line: str, system: bool, settings: dict[str, str], names: Counter[str], options: Options) -> Entry:
    when, command = _split(line, system)
    command = _unescaped(command)
    call = _read_command(command)
    label = " ".join(call.args) or command
    names[label] += 1
    name = label[:190] if names[label] == 1 else f"{label[:190]} ({names[label]})"
    if when == "@reboot":
        raise Refused("@reboot: workers start at any time, and there are many. Call it where the project is started.")
    zone, notes = _zone(settings, options)
    if settings.get("MAILTO"):
        notes.append(f"its output was mailed to {settings['MAILTO']}: see Failures in the admin")
    values = {"kind": "cron", "cron": when, "timezone": zone, "overlap": call.overlap}
    return Entry(
        name,
        COMMAND_TASK,
        call.args,
        values=values,
        notes=(*notes, *call.notes),
        no_task=call.reason,
        command=command,
    )


def _split(line: str, system: bool) -> tuple[str, str]:
    """Return the expression and the command."""
    text = line.strip().removeprefix("-")  # cronie: do not log
    count = 1 if text.startswith("@") else 5
    parts = text.split(None, count + system)
    if len(parts) <= count + system:
        form = "user form; --system tells that it has a column for the user" if not system else "system form"
        raise Refused(f"This line is no entry of a crontab in {form}.")
    when = " ".join(parts[:count])
    if when.startswith("@") and when.upper() not in MACROS and when != "@reboot":
        raise Refused(f"{when} is no macro that is known here: {', '.join(sorted(name.lower() for name in MACROS))}.")
    if "~" in when:
        raise Refused(f"{when!r}: a random time (~) would be another one for each worker. Write H, such as H(0-29).")
    return when, parts[-1]


def _unescaped(command: str) -> str:
    """`%` begins the input of a command; `\\%` is one."""
    if re.search(r"(?<!\\)%", command):
        raise Refused(f"The command is given input by %: {command!r}. Put it into a task.")
    return command.replace("\\%", "%").strip()


def _zone(settings: dict[str, str], options: Options) -> tuple[str, list[str]]:
    if zone := settings.get("CRON_TZ"):
        return zone, ["CRON_TZ is followed, as cronie does; Debian's cron ignores it"]
    return local_zone(options, "cron")


class _Call:
    """What a command does: `args` of `manage.py`, or the reason why it is none."""

    def __init__(self, args: tuple[str, ...] = (), reason: str = "") -> None:
        self.args, self.reason = args, reason
        self.notes: list[str] = []
        self.overlap = "allow"


def _read_command(command: str) -> _Call:
    text = _OUTPUT.sub("", command)
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer)
    except ValueError as error:
        return _Call(reason=f"The shell cannot read {command!r}: {error}.")
    left_out = []
    while words[:1] in (["cd"], ["."], ["source"]) and len(words) > 2 and words[2] in ("&&", ";"):
        left_out.append(" ".join(words[:2]))
        words = words[3:]
    call = _of_manage(words, command)
    if call.args:
        if output := _OUTPUT.search(command):
            left_out.append(output[0].strip())
        if left_out:
            call.notes.insert(0, f"left out: {', '.join(left_out)}")
    return call


def _needs_shell(word: str) -> bool:
    return bool(_OPERATORS.fullmatch(word)) or not {"$", "`"}.isdisjoint(word)


def _place_of_manage(words: list[str]) -> int | None:
    """Return where `manage.py` stands, or what does the same, if the name of a command follows."""
    for at, (word, following) in enumerate(pairwise(words)):
        is_django = word == "django" and at > 0 and words[at - 1] == "-m"
        if is_django or PurePath(word).name in ("manage.py", "django-admin"):
            return None if following.startswith("-") else at
    return None


def _programs(words: list[str]) -> Iterator[str]:
    """Return the names of what stands before a command, without options and assignments."""
    return (PurePath(word).name for word in words if not word.startswith("-") and not _ASSIGNMENT.fullmatch(word))


def _of_manage(words: list[str], command: str) -> _Call:
    map_it = f"Write a @task that does it, and say which: --map '{command}=app.tasks.name'."
    if any(map(_needs_shell, words)):
        several = "" if {"&&", ";"}.isdisjoint(words) else "Give each command a line of its own. Or: "
        return _Call(reason=f"It needs a shell: {command!r}. {several}{map_it}")
    at = _place_of_manage(words)
    if at is None:
        return _Call(reason=f"A command is no task: {command!r}. {map_it}")
    before = [word for word in words[:at] if not PurePath(word).name.startswith("python")]
    programs = list(_programs(before))
    if programs and programs[0] not in _WRAPPERS:
        return _Call(reason=f"{programs[0]} runs it: {command!r}. {map_it}")
    call = _Call(tuple(words[at + 1 :]))
    if "flock" in programs:
        call.overlap = "skip"
    if said := " ".join(word for word in before if word != "-m"):
        call.notes.append(f"left out: {said}" + (": overlap 'skip' does that" if call.overlap == "skip" else ""))
    return call
