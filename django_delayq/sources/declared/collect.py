"""What the code declares, the same in every process of one release. Reads no database.

Note [Same in every process]
A declaration exists once its module is imported, and which modules are imported differs between a web process, a worker
and a command. If all that happen to be there counted, a sync in a process that imports less would disable schedules. So
only those count that importing the task modules brings: of a task that the registry offers, and standing in the module
of that task or in a task module.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...calls import registry
from ...calls.decorators import Declared, made


@dataclass(frozen=True, slots=True)
class Collected:
    """`declared` are to be brought into the database. `twice` share their key or name with another, `outside` stand
    where not every process would find them. Each in order of name.
    """

    declared: Sequence[Declared]
    twice: Sequence[Declared]
    outside: Sequence[Declared]

    @property
    def keys(self) -> frozenset[str]:
        """The keys that the code has: what is not among them is gone."""
        return frozenset(each.key for each in (*self.declared, *self.twice))


def collect() -> Collected:
    """Import the task modules and return what they declare. See Note [Same in every process].

    Raises:
        ImportError: A task module cannot be imported, and not just for a foreign package; the message names the line.
    """
    for broken in registry.broken_modules():
        if not broken.package:
            raise ImportError(str(broken))
    tasks, modules = registry.get_tasks(), frozenset(registry.module_names())
    inside: list[Declared] = []
    outside: list[Declared] = []
    for each in sorted(made(), key=lambda one: (one.values["name"], one.key, one.module)):
        known = each.task in tasks and each.module in {each.func.__module__, *modules}
        (inside if known else outside).append(each)
    keys = Counter(each.key for each in inside)
    names = Counter(each.values["name"] for each in inside)
    twice = [each for each in inside if keys[each.key] > 1 or names[each.values["name"]] > 1]
    return Collected([each for each in inside if each not in twice], twice, outside)
