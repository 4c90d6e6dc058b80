"""The `@task` functions of the installed apps: only these can be scheduled and executed. No dotted path from a form,
the database or Redis is ever imported.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from django.apps import AppConfig, apps
from django.core.signals import setting_changed

from .. import conf
from ..exceptions import InvalidArguments, UnknownTask
from ..text import redact_signature, suggest_name
from .commands import COMMAND_TASK
from .compat import AnyTask, is_task

#: The task that delivers one message of an alert.
ALERT_TASK = "django_delayq.tasks.deliver_alert"

#: Folders of installed packages: their apps are not the project's own.
_INSTALLED = frozenset(("site-packages", "dist-packages"))


class BrokenModule(NamedTuple):
    """A task module that cannot be imported. `package`: the missing package, if the module belongs to an installed app;
    such a package is often optional, so its absence is not an error.
    """

    app: str
    module: str
    reason: str
    package: str = ""

    def __str__(self) -> str:
        return f"{self.module} cannot be imported: {self.reason}"


_tasks: dict[str, AnyTask] | None = None
_broken: list[BrokenModule] = []


def get_tasks() -> Mapping[str, AnyTask]:
    """Return all tasks, sorted by path. The first call imports the modules; failed ones: `list_broken_modules`."""
    global _tasks, _broken
    # Other code may have imported a failed module since; then its tasks are available.
    if _tasks is None or any(each.module in sys.modules for each in _broken):
        _tasks, _broken = _discover()
    return _tasks


def list_broken_modules() -> Sequence[BrokenModule]:
    get_tasks()
    return _broken


def find_broken(path: str) -> BrokenModule | None:
    """Return the broken module of the app that a task's path belongs to: it may contain the task."""
    names = [app.name for app in apps.get_app_configs() if path.startswith(f"{app.name}.")]
    owner = max(names, key=len, default="")  # an app may be inside another one
    return next((each for each in list_broken_modules() if each.app == owner), None)


def find_task(path: str) -> AnyTask | None:
    """Return the task of a path or of a former path in TASK_ALIASES; None if no installed app has it. Only one alias is
    followed, and only to a registered task, so an alias makes no other task available.
    """
    tasks = get_tasks()
    return tasks.get(path) or tasks.get(conf.get_config().task_aliases.get(path, ""))


def resolve_path(path: str) -> str:
    """Return the path of the task that a path or alias names; the path itself if no installed app has the task."""
    task = find_task(path)
    return path if task is None else str(task.module_path)


def list_former_names(path: str) -> list[str]:
    return [old for old, new in conf.get_config().task_aliases.items() if new == path]


def get_task(path: str) -> AnyTask:
    """Return the task of a path or alias: see `find_task`. Raise UnknownTask if no installed app offers it."""
    task = find_task(path)
    if task is None:
        if path == COMMAND_TASK:
            raise UnknownTask(
                f"{path} is not offered: DELAYQ['COMMANDS'] is empty. List the management commands that users who edit "
                "schedules may run with any arguments, in the settings of web processes and workers."
            )
        if broken := find_broken(path):
            raise UnknownTask(f"The task {path!r} is not available: {broken}")
        raise UnknownTask(
            f"No installed app has a @task function {path!r}.{suggest_name(path, get_tasks())} Tasks are looked for in "
            f"the modules {', '.join(conf.get_config().get_modules())} of INSTALLED_APPS."
        )
    return task


def find_modules() -> dict[str, AppConfig]:
    """Return the paths of the modules in which tasks are searched, whether or not they exist, with their apps."""
    config = conf.get_config()
    return {f"{app.name}.{each}": app for app in apps.get_app_configs() for each in config.get_modules(app)}


def _forget(*, setting: str, **kwargs: Any) -> None:
    global _tasks
    if setting in ("DELAYQ", "INSTALLED_APPS"):
        _tasks = None


setting_changed.connect(_forget, dispatch_uid="django_delayq.calls.registry")


def get_summary(task: AnyTask) -> str:
    doc = inspect.getdoc(task.func) or ""
    return " ".join(doc.split("\n\n", 1)[0].split())


def get_signature(task: AnyTask) -> inspect.Signature:
    """Return the signature as a caller sees it: without the context."""
    return _build_signature(task.func, task.takes_context)


@lru_cache(maxsize=1000)
def _build_signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    full = inspect.signature(function)
    parameters = list(full.parameters.values())
    return full.replace(parameters=parameters[1:] if takes_context else parameters)


def get_redacted_signature(task: AnyTask) -> inspect.Signature:
    """Return the signature for display: without the defaults of parameters whose names look secret."""
    return redact_signature(get_signature(task))


def find_parameters(path: str) -> list[inspect.Parameter] | None:
    """Return the parameters of a task as a caller sees them, None if no installed app offers it."""
    task = find_task(path)
    return None if task is None else list(get_signature(task).parameters.values())


def check_call(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidArguments, with the signature, if a task cannot be called with these arguments."""
    try:
        get_signature(task).bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"{error}. The task is called as {task.name}{get_redacted_signature(task)}.") from None


def can_take(task: AnyTask, args: Sequence[Any]) -> bool:
    """Return whether the task takes these positional arguments, whatever else it requires."""
    try:
        get_signature(task).bind_partial(*args)
    except TypeError:
        return False
    return True


def _has_module(path: str) -> bool:
    """Return whether a module exists. A missing parent package means no; a broken one raises."""
    try:
        return find_spec(path) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and f"{path}.".startswith(f"{error.name}."):
            return False
        raise


def _discover() -> tuple[dict[str, AnyTask], list[BrokenModule]]:
    config, own = conf.get_config(), COMMAND_TASK.rpartition(".")[0]
    values, broken, modules = list[object](), list[BrokenModule](), find_modules()
    modules.pop(own, None)  # without a default backend it cannot be imported
    if config.commands or config.alerts:
        modules[own] = apps.get_app_config("django_delayq")
    for path, app in modules.items():
        try:
            if _has_module(path):
                values += vars(import_module(path)).values()
        except (Exception, SystemExit) as error:  # foreign code raises anything
            broken.append(_describe(path, app, error))
    found = {value.module_path: value for value in values if is_task(value)}
    for path, offered in ((COMMAND_TASK, config.commands), (ALERT_TASK, config.alerts)):
        if not offered:  # an app may have imported it
            found.pop(path, None)
    return dict(sorted(found.items())), broken


def _describe(path: str, app: AppConfig, error: BaseException) -> BrokenModule:
    """Describe why a module cannot be imported, with the last line of the app's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [frame for frame in frames if Path(frame.filename).is_relative_to(app.path)] or frames
    where = f"{last[-1].filename}, line {last[-1].lineno}"
    if isinstance(error, SyntaxError):  # without a frame of its own
        where = f"{error.filename}, line {error.lineno}"
    cause = error
    if not isinstance(error, ModuleNotFoundError) and error.__context__ is not None:
        cause = error.__context__  # a package may catch it and raise its own advice
    package = ""
    if isinstance(cause, ModuleNotFoundError) and _INSTALLED.intersection(Path(app.path).parts):
        package = (cause.name or "").partition(".")[0]
    if package == app.name.partition(".")[0]:
        package = ""
    return BrokenModule(app.name, path, f"{type(error).__name__}: {error} ({where})", package)
