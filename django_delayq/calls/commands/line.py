"""Builds and checks the command line of a management command.

Note [The command's own parser checks its words]
The command's parser checks the words before they are stored and before a process starts. This imports the command's
module, and the types of the parser convert the words: a `FileType` opens its file. `--settings` and `--pythonpath` are
refused in every form: they choose code, which editors of schedules must not do. Files of arguments
(`fromfile_prefix_chars`) are refused, because the process would read the file again, perhaps with other content.
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandParser

from ... import conf
from ...exceptions import InvalidArguments
from ...text import suggest_name

#: Options of every command that choose the imported code.
_CHOOSE_CODE = ("--settings", "--pythonpath")


def build_words(name: str, args: Sequence[Any]) -> list[str]:
    """Return the words behind `manage.py`; raise InvalidArguments if the command is not allowed or refuses them."""
    command = _load(name)
    try:
        parser = command.create_parser("manage.py", name)
    except Exception as error:
        raise _build_load_error(name, error) from error
    words = [*map(_format_word, args)]
    _check(name, parser, words)
    return [name, *words]


def list_helps() -> str:
    """Return a line with name and help for each command that may be scheduled, if it can be loaded."""
    lines = []
    for name in conf.get_config().commands:
        with suppress(InvalidArguments):
            lines.append(f"{name}: {' '.join(str(_load(name).help).split())}")
    return "\n".join(lines)


def find_refusal(args: Sequence[Any]) -> str | None:
    """Return why the arguments of COMMAND_TASK, which fit its signature, would be refused; else None."""
    try:
        build_words(args[0], args[1:])
    except InvalidArguments as error:
        return str(error)
    return None


def _load(name: Any) -> BaseCommand:
    allowed = conf.get_config().commands
    if name not in allowed:
        hint = suggest_name(str(name), allowed)
        known = f"; it has {', '.join(allowed)}" if allowed else ""
        raise InvalidArguments(
            f"The command {name!r} may not be scheduled: DELAYQ['COMMANDS'] does not name it{known}.{hint} Add "
            "it there, for web processes and workers, if users who edit schedules may run it with any arguments."
        )
    commands = get_commands()
    if name not in commands:
        raise InvalidArguments(
            f"No installed app has a management command {name!r}, which DELAYQ['COMMANDS'] names."
            f"{suggest_name(name, commands)}"
        )
    app = commands[name]
    try:
        return app if isinstance(app, BaseCommand) else load_command_class(app, name)
    except Exception as error:
        raise _build_load_error(name, error) from error


def _build_load_error(name: str, error: Exception) -> InvalidArguments:
    return InvalidArguments(f"The command {name!r} cannot be loaded: {type(error).__name__}: {error}")


def _format_word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidArguments(f"A word of a command is a text or a number, not {value!r}.")
    return str(value)


def _find_file_signs(parser: argparse.ArgumentParser) -> str:
    """Return the characters by which a parser, or one of its subparsers, recognizes a file of arguments."""
    parts = (part for action in parser._actions if isinstance(action.choices, dict) for part in action.choices.values())
    inner = (_find_file_signs(part) for part in parts if isinstance(part, argparse.ArgumentParser))
    return (parser.fromfile_prefix_chars or "") + "".join(inner)


def _check(name: str, parser: CommandParser, words: Sequence[str]) -> None:
    """Check the words with the command's parser. See Note [The command's own parser checks its words]."""
    signs = tuple(_find_file_signs(parser))
    for word in words:
        if word.startswith(signs):
            raise InvalidArguments(
                f"{name}: {word!r} names a file of arguments, which may change after this check. Write the arguments."
            )
    parser.called_from_command_line = False  # raises instead of exiting
    parser._print_message = lambda *_: None  # type: ignore[method-assign]  # --help and --version
    try:
        found = vars(parser.parse_args(list(words)))
    except SystemExit:
        raise InvalidArguments(f"{name}: --help and --version only print a text. Leave them out.") from None
    except Exception as error:
        why = str(error).removeprefix("Error: ").rstrip(".")
        raise InvalidArguments(f"{name}: {why}. See manage.py help {name}.") from None
    chosen = [found.get(option.lstrip("-")) for option in _CHOOSE_CODE]
    if any(chosen) or any(word.partition("=")[0] in _CHOOSE_CODE for word in words):
        raise InvalidArguments(f"{name}: {' and '.join(_CHOOSE_CODE)} are the worker's own. Leave them out.")
