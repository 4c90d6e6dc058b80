"""How a mutant changes the package for one test: the text of a script as it is loaded, or of one function."""

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Change:
    """In a script (`claim`) or a function (`django_delayq.worker.judge:_not_owed`): this text becomes that one."""

    where: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """`broken` names the invariant that finds it (its beginning) when `history` is played."""

    name: str
    rule: str
    changes: tuple[Change, ...]
    history: Callable[[Any], None]
    broken: str
    #: Names that the new text needs and the module has not.
    names: Mapping[str, Any] = field(default_factory=dict)

    def script(self, name: str, text: str) -> str:
        """Return the text of a script under this mutant."""
        for change in self.changes:
            if change.where in (name, "prelude"):
                assert change.old in text, f"{self.name}: {name}.lua was changed and has no {change.old!r} any more"
                text = text.replace(change.old, change.new)
        return text

    def apply(self, monkeypatch: Any) -> None:
        """Change the functions."""
        for change in self.changes:
            if ":" in change.where:
                self._rewrite(monkeypatch, change)

    def _rewrite(self, monkeypatch: Any, change: Change) -> None:
        module_name, _, path = change.where.partition(":")
        owner: Any = sys.modules[module_name]
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        function = inspect.unwrap(getattr(owner, name))
        text = textwrap.dedent(inspect.getsource(function))
        assert change.old in text, f"{self.name}: {change.where} was changed and has no {change.old!r} any more"
        scope = {**vars(sys.modules[module_name]), **self.names}
        exec(compile(text.replace(change.old, change.new), change.where, "exec"), scope)  # noqa: S102 - our own text
        # The code alone is replaced, so that every module that has imported the function sees it.
        monkeypatch.setattr(function, "__code__", scope[name].__code__)
        for extra, value in self.names.items():
            monkeypatch.setattr(sys.modules[module_name], extra, value, raising=False)
