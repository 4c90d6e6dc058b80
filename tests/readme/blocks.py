"""The Python blocks of the README and of the pages of `docs/` behind it, and what each of them is.

- Its first line is a comment that names a file (`# shop/tasks.py`): a part of that file in a project made for the test.
  `# settings.py` is one of them.
- It has `>>>`: a doctest.
- It is nothing but assignments to names in capitals, or a fragment of such: settings.
- Anything else that begins with an import is a script, and is executed; unless it defines functions or classes: those
  belong into a file. What does not begin with an import is an excerpt, and only read.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: In the order in which somebody reads them, and their examples are run.
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("schedules", "jobs", "testing", "reference", "deployment")))


@dataclass(frozen=True)
class Block:
    """`line` is where its first line stands in `page`. `name` is its file's, else empty."""

    page: str
    line: int
    text: str
    kind: str
    name: str = ""


def read(pages: Sequence[str] = PAGES) -> list[Block]:
    """Return the blocks of the pages in order."""
    found = []
    for page in pages:
        text = (ROOT / page).read_text()
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 2
            found += _parts(page, line, match[1])
    return found


def _parts(page: str, line: int, code: str) -> list[Block]:
    """A block with several file names is several blocks."""
    names = list(re.finditer(r"^# ([\w/]+\.py)$", code, re.MULTILINE))
    if not names:
        return [Block(page, line, code, _kind(code))]
    ends = [name.start() for name in names[1:]] + [len(code)]
    return [
        Block(page, line + code.count("\n", 0, name.start()), code[name.start() : end], "file", name[1])
        for name, end in zip(names, ends, strict=True)
    ]


def _kind(code: str) -> str:
    if ">>>" in code:
        return "doctest"
    try:
        tree = ast.parse(code)
    except SyntaxError:
        ast.parse(f"{{{code}}}")  # a part of a dict
        return "fragment"
    if all(isinstance(item, ast.Assign) and _is_setting(item.targets[0]) for item in tree.body):
        return "settings"
    defines = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if any(isinstance(item, defines) for item in tree.body):
        return "definitions"
    return "script" if isinstance(tree.body[0], ast.Import | ast.ImportFrom) else "excerpt"


def _is_setting(target: ast.expr) -> bool:
    if isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Name) and target.id.isupper()
