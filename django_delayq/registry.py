"""The `@task` functions of the installed apps: what can be scheduled and executed. Nothing else can: no dotted path
from a form, the database or Redis is ever imported.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.core.signals import setting_changed

from . import conf
from .commands import COMMAND_TASK
from .compat import AnyTask, is_task
from .exceptions import InvalidArguments, UnknownTask
from .redaction import redact_signature
from .spelling import did_you_mean

#: What delivers one message of an alert.
ALERT_TASK = "django_delayq.tasks.deliver_alert"

_tasks: dict[str, AnyTask] | None = None


def get_tasks() -> Mapping[str, AnyTask]:
    """Return every task by its path, in order of path. The modules are imported at the first call.

    Raises:
        ImportError: A `tasks` module of an installed app cannot be imported; its own error passes through.
    """
    global _tasks
    if _tasks is None:
        _tasks = _discover()
    return _tasks


def find_task(path: str) -> AnyTask | None:
    """Return the task of a path, also of one that TASK_ALIASES still knows it by; None where no installed app has it.

    An alias is followed once, from a name that no task has to one that a registered task has. So it opens nothing that
    could not be scheduled by its own name, and takes no task's place.
    """
    tasks = get_tasks()
    return tasks.get(path) or tasks.get(conf.get_config().task_aliases.get(path, ""))


def current_name(path: str) -> str:
    """Return the path of the task that a path stands for; the path itself where no installed app has the task."""
    task = find_task(path)
    return path if task is None else str(task.module_path)


def former_names(path: str) -> list[str]:
    """Return the aliases of a path."""
    return [old for old, new in conf.get_config().task_aliases.items() if new == path]


def get_task(path: str) -> AnyTask:
    """Return the task of a path, or of an alias: see `find_task`.

    Raises:
        UnknownTask: No installed app offers it; the message names the nearest one that exists.
    """
    task = find_task(path)
    if task is None:
        if path == COMMAND_TASK:
            raise UnknownTask(
                f"{path} is not offered: DELAYQ['COMMANDS'] is empty. Name there the management commands that whoever "
                "edits schedules may run with any arguments, in the settings of web processes and workers."
            )
        raise UnknownTask(
            f"No installed app has a @task function {path!r}.{did_you_mean(path, get_tasks())} Tasks are looked for in "
            f"the modules {', '.join(conf.get_config().task_modules)} of INSTALLED_APPS."
        )
    return task


def module_names() -> list[str]:
    """Return the paths of the modules that tasks are looked for in, whether or not they are there."""
    return [f"{app.name}.{name}" for app in apps.get_app_configs() for name in conf.get_config().task_modules]


def _forget(*, setting: str, **kwargs: Any) -> None:
    """Discover anew at the next call, where a test has changed what there is."""
    global _tasks
    if setting in ("DELAYQ", "INSTALLED_APPS"):
        _tasks = None


setting_changed.connect(_forget, dispatch_uid="django_delayq.registry")


def summary(task: AnyTask) -> str:
    """Return the first paragraph of a task's docstring on one line, or an empty text."""
    doc = inspect.getdoc(task.func) or ""
    return " ".join(doc.split("\n\n", 1)[0].split())


def signature(task: AnyTask) -> inspect.Signature:
    """Return the signature as a caller sees it: without the context."""
    return _signature(task.func, task.takes_context)


@lru_cache(maxsize=1000)
def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    full = inspect.signature(function)
    parameters = list(full.parameters.values())
    return full.replace(parameters=parameters[1:] if takes_context else parameters)


def shown_signature(task: AnyTask) -> inspect.Signature:
    """Return the signature for people to read: without the defaults of parameters whose names look secret."""
    return redact_signature(signature(task))


def parameters_of(path: str) -> list[inspect.Parameter] | None:
    """Return the parameters of a task as a caller sees them, None where no installed app offers it."""
    task = find_task(path)
    return None if task is None else list(signature(task).parameters.values())


def check_call(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that a task can be called with these arguments.

    Raises:
        InvalidArguments: They do not fit the signature, which the message shows.
    """
    try:
        signature(task).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{error}. The task is called as {task.name}{shown_signature(task)}.") from None


def fits(task: AnyTask, args: Sequence[Any]) -> bool:
    """Say whether the task takes so many positional arguments, whatever else it needs."""
    try:
        signature(task).bind_partial(*args)
    except TypeError:
        return False
    return True


def _exists(path: str) -> bool:
    """Say whether there is such a module. A missing package on the way is a no; a broken one is an error."""
    try:
        return find_spec(path) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and f"{path}.".startswith(f"{error.name}."):
            return False
        raise


def _discover() -> dict[str, AnyTask]:
    config, own = conf.get_config(), COMMAND_TASK.rpartition(".")[0]
    modules = [path for path in module_names() if path != own and _exists(path)]
    if config.commands or config.alerts:
        modules.append(own)
    values = [value for path in modules for value in vars(import_module(path)).values()]
    found = {value.module_path: value for value in values if is_task(value)}
    for path, offered in ((COMMAND_TASK, config.commands), (ALERT_TASK, config.alerts)):
        if not offered:  # an app may have imported it
            found.pop(path, None)
    return dict(sorted(found.items()))
