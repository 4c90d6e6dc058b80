"""Plain English: words that messages, documents, docstrings, comments and names do not use, and better ones."""

import ast
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "django_delayq"
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *PACKAGE.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Refused in prose: a pattern, and what to write instead.
PROSE = {
    r"whoever|whosoever": "the noun: worker, user, process, caller",
    r"nobody|somebody|no one|someone": "no user, no worker, another process",
    r"told|tells?|telling|said|heard": "reported, message, captured, show, say",
    r"asked for": "queried, requested",
    r"stands? for": "is stored, is",
    r"so (?:many|long|often|few)(?! as\b)(?! that\b)": "the unit and its purpose; at most; until",
    r"of late(?! \w)|of before|as ever": "recently, older, as always",
    r"meanwhile": "in the meantime, concurrently",
    r"parked": "broken",
    r"exhausted": "finished",
    r"drift(?:s|ed)?": "difference",
    r"lag(?:s|ged|ging)?": "latency",
    r"agenda|apart": "the field's word",
    r"helpers?|managers?|utils?|utilit(?:y|ies)": "what it does",
    r"(?:is|are) none of|(?<!there )(?:is|are) no(?! longer\b)": "is not a …, are not …, no longer",
}
#: Refused as a part of a name, between underscores or capitals.
NAMES = (
    r"whoever|nobody|somebody|told|tell|said|heard|asked|stands|standing|meanwhile|parked|exhausted|drift|lag|agenda|"
    r"apart|helper|util|utils"
)
#: Refused as the first word of a function's name, which is a verb with an object: `format_value`, not `shown`.
NO_VERBS = (
    r"absolute|applies|beside|busy|changed|checked|collapsed|concerns|converted|counted|cut|differing|discarded|"
    r"due|edited|ended|executing|expired|failed|fits|flushed|found|given|grouped|handed|hashed|held|holding|idle|"
    r"kept|lacking|lapsed|late|left|listed|local|lost|made|may|misfits|missed|moved|moves|named|newest|next|noted|"
    r"overlapped|passed|plain|prepared|quoted|reaches|recent|redacted|refused|relative|retimes|said|same|sent|"
    r"serves|showing|shown|shuffled|slowing|spanned|stalled|taken|told|undecided|unready|unreversed|visible|"
    r"waiting|wanted|wants|watching|why|within|without|worked|written"
)
#: Names of Django's own classes, which many classes and commands have.
SHARED_CLASSES = {"Meta", "Media", "Command"}
#: Public functions, and methods of the admin that Django calls views and columns.
NOUNS = r"next_(?:after|points)|\w+_(?:view|column)"
#: Where a refused word is another's name: Django's managers, a URL, a library's option.
ALLOWED = re.compile(
    r"\S*manager\S*\(|[\w.]*[Mm]anager(?:s\.|\b(?=\.))|service manager|context managers?|https?://\S+|file manager"
)


def refused(text: str) -> list[str]:
    """Return the refused words of a text with what to write instead."""
    text = re.sub(r"\s+", " ", ALLOWED.sub("", text))
    return [
        f"“{found.group()}”: {better}"
        for pattern, better in PROSE.items()
        for found in re.finditer(rf"(?<![\w`.-])(?:{pattern})(?![\w`(=-])", text, re.IGNORECASE)
    ]


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each comment and each text of a module with its line; a formatted text by its parts."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def texts_of_page(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each paragraph of a document, template or script with its first line; in these, also the code."""
    text = path.read_text("utf-8")
    for found in re.finditer(r"\S.*(?:\n.*\S.*)*", text):
        yield text.count("\n", 0, found.start()) + 1, found.group()


def names_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each name that a module gives: to functions, classes, arguments, attributes and variables."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def functions_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each function and method, but no property, no context manager and no narrowing method of a queryset."""
    tree = ast.parse(path.read_text())
    querysets = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.endswith("QuerySet")]
    narrowing = {item for node in querysets for item in node.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in narrowing:
            decorators = {ast.unparse(item).rpartition(".")[2] for item in node.decorator_list}
            if decorators.isdisjoint({"property", "cached_property", "contextmanager"}):
                yield node.lineno, node.name


def is_no_verb(name: str) -> bool:
    return re.match(rf"_*(?:{NO_VERBS})(?:_|$)", name) is not None and re.fullmatch(NOUNS, name) is None


def modules() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "django_delayq/*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    paths = [ROOT / name for name in listed.stdout.split()] or sorted(PACKAGE.rglob("*.py"))
    return [path for path in paths if path.exists()]


def test_messages_docstrings_and_comments_use_no_refused_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {word}"
        for path in modules()
        for line, text in texts_of(path)
        for word in refused(text)
    ]
    assert found == []


def test_templates_and_scripts_use_no_refused_word() -> None:
    pages = sorted([*(PACKAGE / "templates").rglob("*.html"), *(PACKAGE / "static").rglob("*.js")])
    assert {path.suffix for path in pages} == {".html", ".js"}
    found = [
        f"{path.relative_to(ROOT)}:{line} {word}"
        for path in pages
        for line, text in texts_of_page(path)
        for word in refused(text)
    ]
    assert found == []


def test_names_use_no_refused_word() -> None:
    parts = re.compile(rf"(?:^|_)(?:{NAMES})(?:_|$)", re.IGNORECASE)
    camel = re.compile(r"(?<=[a-z])(?=[A-Z])")
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules()
        for line, name in names_of(path)
        if parts.search(camel.sub("_", name))
    ]
    assert found == []


def test_functions_are_verbs() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules()
        for line, name in functions_of(path)
        if is_no_verb(name)
    ]
    assert found == []


def test_a_class_has_its_name_alone() -> None:
    trees = [ast.parse(path.read_text()) for path in modules()]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert {name for name in names if names.count(name) > 1} - SHARED_CLASSES == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_no_refused_word(path: Path) -> None:
    assert [f"{number} {word}" for number, text in texts_of_page(path) for word in refused(text)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_cells_of_tables_have_at_most_25_words(path: Path) -> None:
    rows = [line.strip("| ") for line in path.read_text("utf-8").splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in re.split(r"(?<!\\)\|", row) if len(cell.split()) > 25] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("whoever has it", 1),
        ("the context manager", 0),
        ("a lag of 3 s", 1),
        ("this is no\nJSON", 1),
        ("they are no tasks, there\nare no others", 1),
        ("it is no longer there", 0),
    ],
)
def test_the_check_finds_a_refused_word(text: str, words: int) -> None:
    assert len(refused(text)) == words


def test_the_check_finds_functions_that_are_no_verbs(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "def shown(): ...\ndef _taken_by(): ...\ndef take(): ...\n@contextmanager\ndef held(): ...\n"
        "class A:\n    @property\n    def late(self): ...\n    def late_by(self): ...\n"
        "class AQuerySet:\n    def failed(self): ...\n"
    )
    assert [name for _, name in functions_of(path) if is_no_verb(name)] == ["shown", "_taken_by", "late_by"]


def test_each_note_that_is_cited_exists_once() -> None:
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua"), *PACKAGE.rglob("*.md"), *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(path.read_text("utf-8") for path in files)
    titles = re.findall(r"^(?:-- )? *Note \[([^\]]+)\]$", text, re.MULTILINE)
    cited = set(re.findall(r"Notes? \[([^\].]+)\]", re.sub(r"\s+", " ", text)))
    assert cited - set(titles) == set()
    assert sorted(title for title in set(titles) if titles.count(title) > 1) == []
