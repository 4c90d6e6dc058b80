"""The Redis user of SECURITY.md, on a real server. Reads the rules from the document; knows no test."""

import re
from pathlib import Path

SECURITY = Path(__file__).resolve().parents[2] / "django_delayq" / "SECURITY.md"
USER, PASSWORD = "delayq", "only for tests"
#: redis-py introduces itself with CLIENT SETINFO, and goes on where that is refused.
INTRODUCTION = "client"


def rules(prefix: str, *, cluster: bool = False) -> list[str]:
    """Return the rules of the document's user for another prefix. Glob characters in it are taken as such."""
    blocks = re.findall(r"^```\nACL SETUSER delayq (.*?)^```", SECURITY.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2, "SECURITY.md has one block of rules, and one of what a cluster needs beside them"
    words = " ".join(blocks if cluster else blocks[:1]).split()
    return [f">{PASSWORD}" if word == ">PASSWORD" else _renamed(word, prefix) for word in words]


def _renamed(rule: str, prefix: str) -> str:
    return rule.replace("delayq", prefix, 1) if rule[0] in "~&" else rule


def grants(words: list[str]) -> list[str]:
    """Return the rules that allow something."""
    return [word for word in words if word[0] in "~&+"]


def make_user(admin, words: list[str], name: str = USER) -> None:
    """Make the user anew with these rules, and forget what was denied."""
    admin.execute_command("ACL", "SETUSER", name, "reset", *words)
    admin.execute_command("ACL", "LOG", "RESET")


def denied(admin, name: str = USER) -> set[tuple[str, str]]:
    """Return what the user was denied: (`command`, `key` or `channel`, its name)."""
    found = set()
    for entry in admin.execute_command("ACL", "LOG", 128):
        if not isinstance(entry, dict):
            entry = dict(zip(entry[::2], entry[1::2], strict=True))
        entry = {_text(name): _text(value) for name, value in entry.items()}
        if entry["username"] == name and not entry["object"].startswith(INTRODUCTION):
            found.add((entry["reason"], entry["object"]))
    return found


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def url_of(url: str, name: str = USER, password: str = PASSWORD) -> str:
    """Return an address with this user in it, for each server that it names."""
    return url.replace("://", f"://{name}:{password.replace(' ', '%20')}@")
