"""A user's or the system's crontab. Commands are not tasks, except `manage.py COMMAND`, which a task of ours runs."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from getopt import GetoptError, getopt
from pathlib import PurePath

from ...calls.commands import COMMAND_TASK
from ...recurrence.dialect import MACROS
from . import shell
from .entry import Entry, Options, Refused, guarded, local_zone, read_text
from .secrets import hide_secrets
from .shell import Word

DIFFERS = (
    "cron starts a command although the last one is still busy: so does overlap 'allow', which is set here, but for "
    "flock.",
    "cron makes up for nothing when the machine was off: here the newest missed point runs (missed); 'skip' runs none.",
    "A fixed time that does not exist, or comes twice, runs once, as with cron.",
    "The command runs with the worker's environment, user and folder; output is kept in the run, not mailed.",
)
_SETTING = re.compile(r"\s*(?P<name>[A-Za-z_]\w*|\"[A-Za-z_]\w*\"|'[A-Za-z_]\w*')\s*=\s*(?P<value>.*?)\s*$")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SHELLS = ("sh", "bash", "dash", "ash", "ksh")
#: Programs that may precede `manage.py`: short and long options in the form of `getopt`, and operands after them.
_WRAPPERS: dict[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "env": ("iu:C:", ("ignore-environment", "unset=", "chdir="), ()),
    "exec": ("cla:", (), ()),
    "nice": ("n:0123456789", ("adjustment=",), ()),
    "ionice": ("c:n:t", ("class=", "classdata=", "ignore"), ()),
    "timeout": ("k:s:v", ("kill-after=", "signal=", "foreground", "preserve-status", "verbose"), (r"[\d.]+[smhd]?",)),
    "chronic": ("ev", (), ()),
    "time": ("pvaf:o:", (), ()),
    "poetry": ("qnC:P:", ("quiet", "no-interaction", "directory=", "project="), ("run",)),
    "pipenv": ("q", ("quiet",), ("run",)),
    "uv": ("q", ("quiet", "offline", "directory=", "project="), ("run",)),
    "uv run": ("qp:", ("quiet", "frozen", "locked", "no-sync", "no-dev", "env-file=", "with=", "python="), ()),
    "flock": (
        "xesunoFw:E:",
        ("exclusive", "shared", "unlock", "nonblocking", "nb", "wait=", "timeout=", "conflict-exit-code=", "close",
         "no-fork", "verbose"),
        (".+",),
    ),
    "python": ("bBdEIOPqsSuvxW:X:m:", (), ()),
}  # fmt: skip
#: Short names of the `flock` options that matter.
_FLOCK = {
    "--shared": "-s", "--unlock": "-u", "--nonblocking": "-n", "--nb": "-n", "--wait": "-w", "--timeout": "-w",
}  # fmt: skip
_HINT = "Write a @task that does it, and say which: --map '{}=app.tasks.name'."
_SYSTEM_FILES = ("/etc/crontab", "/etc/cron.d/")


def read(source: str, options: Options) -> Iterator[Entry]:
    """See `Origin`."""
    system = source.startswith(_SYSTEM_FILES) if options.system is None else options.system
    settings: dict[str, str] = {}
    entries: list[Entry] = []
    locks: dict[str, list[int]] = defaultdict(list)
    for line in read_text(source).split("\n"):
        if not line.strip() or line.lstrip(" \t").startswith("#"):
            continue
        if set_ := _SETTING.fullmatch(line):
            settings[set_["name"].strip("\"'")] = set_["value"].strip("\"'")
            continue
        shown, call = hide_secrets(line.strip()), _Call()
        entries.append(guarded(shown[:200], shown, partial(_entry, line, system, settings, options, call)))
        if call.lock:
            locks[call.lock].append(len(entries) - 1)
    for lock, places in locks.items():
        for place in places:
            others = ", ".join(repr(entries[other].name) for other in places if other != place)
            if others:
                note = f"the lock {lock} is also that of {others}: overlap keeps a schedule from itself only"
                entries[place] = replace(entries[place], notes=(*entries[place].notes, note))
    yield from entries


@dataclass
class _Call:
    """What a command does: `args` of `manage.py`, or the reason why there are none; `lock` is the file of `flock`."""

    args: tuple[str, ...] = ()
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    overlap: str = "allow"
    lock: str = ""


def _entry(line: str, system: bool, settings: dict[str, str], options: Options, call: _Call) -> Entry:
    if line.endswith("\r"):
        raise Refused(
            "It ends with a carriage return, which cron makes a part of the command. Convert the file to \\n."
        )
    when, command = _split(line, system)
    command = _unescaped(command)
    _read_command(command, call, settings.get("SHELL", "sh"))
    if when == "@reboot":
        raise Refused("@reboot: workers start at any time, and there are many. Call it where the project is started.")
    zone, notes = _zone(settings, options)
    if settings.get("MAILTO"):
        notes.append(f"its output was mailed to {settings['MAILTO']}: see Failures in the admin")
    values = {"kind": "cron", "cron": when, "timezone": zone, "overlap": call.overlap}
    return Entry(
        hide_secrets(shlex.join(call.args) or command)[:190],
        COMMAND_TASK,
        call.args,
        values=values,
        notes=(*notes, *call.notes),
        no_task=call.reason,
        command=command,
        numbered=True,
    )


def _split(line: str, system: bool) -> tuple[str, str]:
    text = line.lstrip(" \t").removeprefix("-")  # cronie: "-" disables logging
    count = 1 if text.startswith("@") else 5
    parts = re.split("[ \t]+", text, maxsplit=count + system)
    if len(parts) <= count + system or not parts[-1]:
        form = "user form; --system tells that it has a column for the user" if not system else "system form"
        raise Refused(f"This line is no entry of a crontab in {form}.")
    when = " ".join(parts[:count])
    if when.startswith("@") and when.upper() not in MACROS and when != "@reboot":
        raise Refused(f"{when} is no macro that is known here: {', '.join(sorted(name.lower() for name in MACROS))}.")
    if "~" in when:
        raise Refused(f"{when!r}: a random time (~) would be another one for each worker. Write H, such as H(0-29).")
    return when, parts[-1]


def _unescaped(command: str) -> str:
    """Return a command as cron passes it to the shell: `%` begins its input, and `\\%` is a percent sign."""

    def character(found: re.Match[str]) -> str:
        if found[0] == "%":
            raise Refused(f"The command is given input by %: {hide_secrets(command)!r}. Put it into a task.")
        return "%" if found[0] == "\\%" else found[0]

    return re.sub(r"\\.|%", character, command)


def _zone(settings: dict[str, str], options: Options) -> tuple[str, list[str]]:
    if zone := settings.get("CRON_TZ"):
        return zone, ["CRON_TZ is followed, as cronie does; Debian's cron ignores it"]
    return local_zone(options, "cron")


def _read_command(command: str, call: _Call, program: str = "sh") -> None:
    shown = hide_secrets(command.strip(" \t"))
    try:
        if PurePath(program).name not in _SHELLS:
            raise Refused(f"Its SHELL is {program}, whose words are not known here")
        _read_line(command, call)
    except Refused as error:
        call.args, call.reason = (), f"{error}: {shown!r}. {_HINT.format(shown)}"


def _read_line(line: str, call: _Call) -> None:
    words, output = shell.read(line)
    before = []
    while _prepares(words):
        before.append(f"{words[0].text} {words[1].text}")
        words = words[3:]
    if left_out := [*before, *output]:
        call.notes.append(f"left out: {', '.join(left_out)}")
    _read_words(words, call)


def _prepares(words: Sequence[Word]) -> bool:
    """Return whether the words begin with a change of the directory or the environment for the rest."""
    return (
        len(words) > 3
        and words[0] in (("cd", ""), (".", ""), ("source", ""))
        and words[1].means != shell.OPERATOR
        and words[2] in (("&&", shell.OPERATOR), (";", shell.OPERATOR))
    )


def _read_words(words: Sequence[Word], call: _Call) -> None:
    """Find `manage.py` or its equivalent after programs that do not change what it does."""
    for word in words:
        if word.means == shell.OPERATOR:
            several = "; give each command a line of its own" if word.text in ("&&", ";") else ""
            raise Refused(f"It needs a shell, for {word.text!r}{several}")
    texts, at = [word.text for word in words], 0
    while at < len(texts):
        name = PurePath(texts[at]).name
        name = "python" if name.startswith("python") else name
        if name in ("manage.py", "django-admin"):
            break
        if _ASSIGNMENT.fullmatch(texts[at]):
            at += 1
        elif name in _WRAPPERS:
            found, rest = _options(name, texts[at + 1 :])
            if name == "python" and "-m" in (options := dict(found)):
                if options["-m"] != "django":
                    raise Refused(_name_runner(f"python -m {options['-m']}", texts))
                at = len(texts) - len(rest) - 1
                break
            if name == "flock" and _lock(found, texts[len(texts) - len(rest) - 1], rest, call):
                return
            at = len(texts) - len(rest)
        else:
            raise Refused(_name_runner(name, texts))
    if at + 1 >= len(texts) or texts[at + 1].startswith("-"):
        raise Refused("It names no management command")
    for place, word in enumerate(words):
        if word.means and (place > at or word.means != shell.HOME):
            raise Refused(f"It needs a shell, for {word.means} in {hide_secrets(word.text)!r}")
    call.args = tuple(texts[at + 1 :])
    if left_out := [text for text in texts[:at] if not PurePath(text).name.startswith("python") and text != "-m"]:
        call.notes.append(f"left out: {' '.join(left_out)}")


def _name_runner(name: str, texts: Iterable[str]) -> str:
    is_django = any(PurePath(text).name in ("manage.py", "django-admin") for text in texts)
    return f"{name} runs it" if is_django else "A command is no task"


def _options(name: str, words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of a program that runs a command, and the words of that command."""
    short, long, operands = _WRAPPERS[name]
    try:
        found, rest = getopt(words, short, long)
    except GetoptError as error:
        raise Refused(f"{name}: {error}") from None
    for operand in operands:
        if not rest or not re.fullmatch(operand, rest[0], re.DOTALL):
            raise Refused(f"{name} runs it")
        rest = rest[1:]
    return _options("uv run", rest) if name == "uv" else (found, rest)


def _lock(found: list[tuple[str, str]], file: str, command: list[str], call: _Call) -> bool:
    """Choose the overlap that matches `flock`; return True if its command was one text, which has been read then."""
    options = {_FLOCK.get(name, name): value for name, value in found}
    for name, why in (("-s", "a shared lock keeps no command from another"), ("-u", "it gives a lock up")):
        if name in options:
            raise Refused(f"flock {name}: {why}")
    try:
        seconds = float(options.get("-w", "inf"))
    except ValueError:
        raise Refused(f"flock -w {options['-w']}: that is no number") from None
    call.lock = file
    if "-n" in options or not seconds:
        call.overlap = "skip"
        call.notes.append("flock gives up while the command is busy: so does overlap 'skip'")
    elif "-w" in options:
        call.overlap = "queue_one"
        call.notes.append(
            f"flock waits for {seconds:g} s and gives up then; overlap 'queue_one' waits without a limit, and runs the "
            "newest of the points that came due"
        )
    else:
        call.overlap = "queue_all"
        call.notes.append("flock waits while the command is busy: so does overlap 'queue_all'")
    if command[:1] not in (["-c"], ["--command"]):
        return False
    if len(command) != 2:
        raise Refused(f"flock {command[0]} takes one text")
    _read_line(command[1], call)
    return True
