"""The embedded server, for real: every test starts servers of its own and leaves none."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from django_delayq import embedded
from django_delayq.embedded import EmbeddedServer, EmbeddedServerUnavailable, shared_server

ROOT = Path(__file__).resolve().parents[2]
#: Ends what would never end.
PATIENCE_SECONDS = 120.0


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a shared server that only this test uses."""
    return f"{request.node.nodeid}-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def start_user() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a Python process that runs the given lines, in a process group of its own."""
    users: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> "subprocess.Popen[str]":
        user = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *arguments],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        users.append(user)
        return user

    yield start
    for user in users:
        user.kill()
        user.communicate()


USE_SHARED = """
    import sys
    from django_delayq.embedded import shared_server
    server = shared_server(sys.argv[1]).start()
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


def ping(server: EmbeddedServer) -> bool:
    """Ask through redis-py, as a project would."""
    with redis.Redis.from_url(server.url) as client:
        return bool(client.ping())


def alive(pid: int) -> bool:
    """Say whether a process runs; one that ended but was not reaped does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll: there is nothing to wait on, the processes are not ours."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        time.sleep(0.02)


def test_it_serves_redis_py_on_a_private_unix_socket_and_no_port() -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.set("a", "1")
        assert client.get("a") == "1"
        assert client.info("server")["process_id"] == server.pid
        assert client.info("server")["tcp_port"] == 0
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700


def test_it_stops_and_leaves_nothing() -> None:
    with EmbeddedServer() as server:
        pid, home = server.pid, server.socket.parent
        assert alive(pid)
    assert not alive(pid)
    assert not home.exists()
    server.stop()  # again: harmless


def test_after_a_stop_it_starts_empty_at_the_same_url() -> None:
    with EmbeddedServer() as server:
        url = server.url
        with redis.Redis.from_url(url) as client:
            client.set("a", "1")
        server.stop()
        assert server.start().url == url
        with redis.Redis.from_url(url) as client:
            assert client.dbsize() == 0


def test_a_killed_server_is_started_anew_at_the_same_url() -> None:
    with EmbeddedServer() as server:
        url, pid = server.url, server.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), "the server's death")
        assert server.start().url == url
        assert server.pid != pid
        assert ping(server)


def test_an_append_only_file_in_a_directory_of_the_caller_survives(tmp_path: Path) -> None:
    for value in (None, b"1"):
        with EmbeddedServer(directory=tmp_path, appendonly=True) as server, redis.Redis.from_url(server.url) as client:
            assert client.get("a") == value
            client.set("a", "1")
    assert any(tmp_path.iterdir())


def test_kill_9_of_the_parent_takes_the_server_with_it(start_user: Callable[..., "subprocess.Popen[str]"]) -> None:
    user = start_user(USE_PRIVATE)
    assert user.stdout is not None
    pid, path = user.stdout.readline().split()
    assert alive(int(pid))
    user.kill()
    wait_until(lambda: not alive(int(pid)), "the server's end")
    wait_until(lambda: not Path(path).parent.exists(), "the directory's removal")


def test_ctrl_c_reaches_the_parent_but_not_the_server(start_user: Callable[..., "subprocess.Popen[str]"]) -> None:
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
    assert user.stdout is not None
    assert user.stdout.readline() == "ready\n"
    os.killpg(user.pid, signal.SIGINT)
    assert user.stdout.readline() == "True\n"
    assert user.wait(PATIENCE_SECONDS) == 0


def test_a_forked_child_that_ends_does_not_take_the_server_with_it() -> None:
    with EmbeddedServer() as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert ping(server)


def test_a_second_starter_reuses_the_server_and_the_last_user_ends_it(name: str) -> None:
    first, second = shared_server(name), shared_server(name)
    with first:
        pid = first.pid
        with second:
            assert (second.pid, second.url) == (pid, first.url)
            assert first.url == embedded.shared_url(name)
            first.stop()
            assert ping(second)
        assert not alive(pid)
        assert not second.socket.parent.exists()


def test_starters_that_race_get_one_server(start_user: Callable[..., "subprocess.Popen[str]"], name: str) -> None:
    users = [start_user(USE_SHARED, name) for _ in range(4)]
    pids = {int(user.stdout.readline()) for user in users if user.stdout}
    assert len(pids) == 1
    pid = pids.pop()
    for user in users[:-1]:
        user.kill()
        user.wait()
    assert alive(pid)
    with shared_server(name) as late:
        assert late.pid == pid
        users[-1].kill()
        users[-1].wait()
        assert ping(late)
    assert not alive(pid)


def test_users_that_come_and_go_at_once_never_meet_a_dying_server(
    start_user: Callable[..., "subprocess.Popen[str]"], name: str
) -> None:
    code = """
        import sys, redis
        from django_delayq.embedded import shared_server
        for _ in range(10):
            with shared_server(sys.argv[1]) as server, redis.Redis.from_url(server.url) as client:
                client.set("a", 1)
    """
    users = [start_user(code, name) for _ in range(3)]
    assert [user.wait(PATIENCE_SECONDS * 3) for user in users] == [0, 0, 0]
    assert not shared_server(name).socket.parent.exists()


def test_what_a_killed_watchdog_left_is_cleared_away(name: str) -> None:
    with shared_server(name) as server:
        pid = server.pid
        watchdog = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=True)
        os.kill(int(watchdog.stdout), signal.SIGKILL)
        wait_until(lambda: not alive(int(watchdog.stdout)), "the watchdog's death")
        with shared_server(name) as other:
            assert other.pid != pid
            assert ping(other)
            wait_until(lambda: not alive(pid), "the orphan's end")
        assert not other.socket.parent.exists()


def test_stale_files_do_not_keep_it_from_starting(name: str) -> None:
    server = shared_server(name)
    server.socket.parent.mkdir(mode=0o700)
    for file in ("s", "l", "log"):
        (server.socket.parent / file).touch()
    with server:
        assert ping(server)
    assert not server.socket.parent.exists()


def test_a_shared_directory_open_to_others_is_refused(name: str) -> None:
    server = shared_server(name)
    server.socket.parent.mkdir()
    server.socket.parent.chmod(0o755)
    try:
        with pytest.raises(EmbeddedServerUnavailable, match=r"open to others.*DELAYQ_REDIS_URL"):
            server.start()
    finally:
        server.socket.parent.rmdir()


def test_a_server_that_does_not_start_says_why_and_leaves_nothing() -> None:
    server = EmbeddedServer(extra_args=("--no-such-option", "1"))
    with pytest.raises(EmbeddedServerUnavailable, match="no-such-option"):
        server.start()
    assert not server.socket.parent.exists()
    missing = EmbeddedServer("/nowhere/redis-server")
    with pytest.raises(EmbeddedServerUnavailable, match=r"No such file.*/nowhere/redis-server"):
        missing.start()
    assert not missing.socket.parent.exists()


def test_redis_url_serves_the_children_too_and_ends_with_the_process(
    start_user: Callable[..., "subprocess.Popen[str]"],
) -> None:
    user = start_user("""
        import os, subprocess, sys
        os.environ.pop("DELAYQ_REDIS_URL", None)
        from django_delayq.embedded import redis_url
        redis_url()
        child = "import redis, os; print(redis.Redis.from_url(os.environ['DELAYQ_REDIS_URL']).info()['process_id'])"
        subprocess.run([sys.executable, "-c", child], check=True)
    """)
    assert user.stdout is not None
    pid = int(user.stdout.readline())
    assert user.wait(PATIENCE_SECONDS) == 0
    assert not alive(pid)
