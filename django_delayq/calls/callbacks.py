"""What follows an end: the task that `on_success` or `on_failure` names. Enqueues nothing."""

from . import registry
from .compat import AnyTask, InvalidTask, is_task

NAMES = ("on_success", "on_failure")


def path_of(name: str, value: object) -> str:
    """Return the path of the task that an option names, '' for none.

    Raises:
        InvalidTask: It is neither a task nor a text.
    """
    if is_task(value):
        return str(value.module_path)
    if value is not None and not isinstance(value, str):
        raise InvalidTask(f"{name} must be a @task function or its path, not {value!r}.")
    return value or ""


def callbacks_of(task: AnyTask) -> dict[str, str]:
    """Return the paths that a task names for its success and its failure, as far as it names any.

    Raises:
        InvalidTask: They are no tasks.
        UnknownTask: No installed app offers such a task.
        InvalidArguments: It does not take the id of a result.
    """
    paths = {name: path for name in NAMES if (path := path_of(name, getattr(task, name, None)))}
    for path in set(paths.values()):
        registry.check_call(registry.get_task(path), ["id"], {})
    return paths
