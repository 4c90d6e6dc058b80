"""The German catalogue: compiled from its source, with every text of the code and each of its placeholders."""

import ast
import re
from collections.abc import Iterator
from gettext import GNUTranslations
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

import django_delayq

PACKAGE = Path(django_delayq.__file__).parent
HOME = PACKAGE / "locale" / "de" / "LC_MESSAGES"
SEVERAL = ("ngettext", "ngettext_lazy")
WITH_CONTEXT = ("pgettext", "pgettext_lazy")
MARKS = ("_", "gettext", "gettext_lazy", "gettext_noop", *SEVERAL, *WITH_CONTEXT)
#: A text of the code: its context ('' for none), the text, its plural ('' for none).
Text = tuple[str, str, str]


@pytest.fixture(scope="module")
def compiled() -> GNUTranslations:
    with (HOME / "django.mo").open("rb") as file:
        return GNUTranslations(file)


def test_the_compiled_catalogue_is_that_of_the_source_and_keeps_every_placeholder(compiled: GNUTranslations) -> None:
    one = re.compile(r'^(?:msgctxt "(.+)"\n)?msgid "(.+)"\nmsgstr "(.+)"$', re.MULTILINE)
    several = re.compile(r'^msgid "(.+)"\nmsgid_plural "(.+)"\nmsgstr\[0\] "(.+)"\nmsgstr\[1\] "(.+)"$', re.MULTILINE)
    text = (HOME / "django.po").read_text()
    entries = one.findall(text)
    assert len(entries) > 350
    for context, source, german in entries:
        known = compiled.pgettext(context, plain(source)) if context else compiled.gettext(plain(source))
        assert known == plain(german)
        assert placeholders(german) == placeholders(source)
    assert len(several.findall(text)) > 30
    for source, source_plural, german, german_plural in several.findall(text):
        assert compiled.ngettext(plain(source), plain(source_plural), 1) == plain(german)
        assert compiled.ngettext(plain(source), plain(source_plural), 2) == plain(german_plural)
        assert placeholders(german) == placeholders(source)
        assert placeholders(german_plural) == placeholders(source_plural)


def test_every_text_of_the_code_and_of_the_templates_is_translated(compiled: GNUTranslations) -> None:
    found = {*texts_of_code(), *texts_of_templates()}
    assert len(found) > 400
    assert {("", "Retry", ""), ("", "Backfill: %(count)d run.", "Backfill: %(count)d runs.")} <= found
    assert sorted(text for text in found if not known(compiled, *text)) == []


def known(compiled: GNUTranslations, context: str, text: str, plural: str) -> bool:
    """Say whether there is a German text; it may be the same word."""
    catalog: dict[object, str] = compiled._catalog  # type: ignore[attr-defined]
    key = f"{context}\x04{text}" if context else text
    return bool(catalog.get((key, 0)) and catalog.get((key, 1))) if plural else bool(catalog.get(key))


def texts_of_code() -> Iterator[Text]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKS:
                yield from text_of(node.func.id, node)


def text_of(mark: str, node: ast.Call) -> Iterator[Text]:
    words = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    if mark in SEVERAL:
        assert len(words) >= 2, ast.unparse(node)
        yield "", words[0], words[1]
    elif mark in WITH_CONTEXT:
        assert len(words) == 2, ast.unparse(node)
        yield words[0], words[1], ""
    elif words:  # else it is a text that another place names
        yield "", words[0], ""


def texts_of_templates() -> Iterator[Text]:
    """Return what Django's own `makemessages` would find there: it writes each text as a call in Python."""
    call = re.compile(
        r"\b(n?gettext|_)\(u?('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")(?:, ?u?('[^']*'|\"[^\"]*\"), ?count)?\)"
    )
    for path in sorted(PACKAGE.rglob("*.html")):
        written = templatize(path.read_text())
        assert written.count("gettext(") + written.count("_(") == len(call.findall(written)), path
        for _, text, plural in call.findall(written):
            yield "", ast.literal_eval(text).strip(), ast.literal_eval(plural).strip() if plural else ""


def plain(text: str) -> str:
    return text.replace('\\"', '"')


def placeholders(text: str) -> list[str]:
    return sorted(re.findall(r"%\(\w+\)[sdg]|\{\w*\}", text))
