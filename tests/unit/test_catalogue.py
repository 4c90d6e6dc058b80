"""The German catalogue: compiled from its source, with every placeholder of the English text."""

import re
from gettext import GNUTranslations
from pathlib import Path

import django_delayq


def test_the_compiled_catalogue_is_that_of_the_source_and_keeps_every_placeholder() -> None:
    home = Path(django_delayq.__file__).parent / "locale" / "de" / "LC_MESSAGES"
    with (home / "django.mo").open("rb") as file:
        compiled = GNUTranslations(file)
    one = re.compile(r'^msgid "(.+)"\nmsgstr "(.+)"$', re.MULTILINE)
    several = re.compile(r'^msgid "(.+)"\nmsgid_plural "(.+)"\nmsgstr\[0\] "(.+)"\nmsgstr\[1\] "(.+)"$', re.MULTILINE)
    text = (home / "django.po").read_text()
    pairs = one.findall(text)
    assert len(pairs) > 150
    for source, german in pairs:
        assert compiled.gettext(plain(source)) == plain(german)
        assert placeholders(german) == placeholders(source)
    assert len(several.findall(text)) > 8
    for source, source_plural, german, german_plural in several.findall(text):
        assert compiled.ngettext(plain(source), plain(source_plural), 1) == plain(german)
        assert compiled.ngettext(plain(source), plain(source_plural), 2) == plain(german_plural)
        assert placeholders(german_plural) == placeholders(source_plural)


def plain(text: str) -> str:
    return text.replace('\\"', '"')


def placeholders(text: str) -> list[str]:
    return sorted(re.findall(r"%\(\w+\)[sd]|\{\w*\}", text))
