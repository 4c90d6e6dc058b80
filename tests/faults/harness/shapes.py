"""Redis in the shapes of production: a master with replicas and Sentinels, and a cluster. All on loopback."""

import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import redis
from django.conf import settings
from django.test import override_settings
from redis.crc import key_slot

from django_delayq.embedded import EmbeddedServer, find_server
from django_delayq.index import Shard
from django_delayq.index.keys import build_keys
from tests.acceptance.support import wait_until

from .servers import BRISK

NODES, PRIMARIES = 6, 3
SLOTS = 16384
#: After so long a node that does not answer is taken for dead.
DOWN_MS = 1500
MASTER = "orders"
WITNESS = "witness"


def free_ports(count: int) -> list[int]:
    """Return free ports whose companions for the cluster's bus (10,000 above) are free too.

    Until this process ends no other one is given them. None of them is the companion of another one, or a port that
    the system gives to a client.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 22_768)
        if _is_free(port) and _is_free(port + 10_000) and _reserved(port):
            found.append(port)
    return found


def _reserved(port: int) -> bool:
    descriptor = os.open(Path(tempfile.gettempdir(), f"delayq-port-{port}"), os.O_RDWR | os.O_CREAT, 0o666)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True  # the lock ends with the process
    os.close(descriptor)
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
        return False


class Node:
    """One server on a port of its own, which keeps its address and its files when it is killed and started again."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        folder.mkdir()
        self.port = port
        listen = ("--port", str(port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
        self._embedded = EmbeddedServer(extra_args=("--dir", str(folder), *BRISK, *listen, *options))
        self.up = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._embedded.pid

    @property
    def url(self) -> str:
        """Its own address."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, for the first time or again."""
        self._embedded.start()
        self.up = True

    def stop(self) -> None:
        """Shut it down."""
        self._embedded.stop()
        self.up = False

    def kill(self) -> None:
        """Kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not self._embedded.socket.parent.exists(), 10, "the end of a node")
        self.up = False

    def call(self, *words: Any) -> Any:
        """Send a command to this very node."""
        with redis.Redis(port=self.port, host="127.0.0.1", socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(*words)

    def follows(self, other: "Node") -> bool:
        """Say whether it is a replica of that one."""
        role = self.call("ROLE")
        return role[0] == "slave" and int(role[2]) == other.port

    def die_alone(self, followers: Sequence["Node"], seconds: float, witness: str) -> None:
        """Accept writes for so long that no follower sees, then be killed: they are lost.

        `witness` is a key that is written among them, to be looked for in whoever takes over.
        """
        for node in followers:
            os.kill(node.pid, signal.SIGSTOP)
        try:
            self.call("CLIENT", "KILL", "TYPE", "replica")  # else the writes would wait in the followers' sockets
            time.sleep(seconds)
            self.call("SET", witness, "accepted")
            self.kill()
        finally:
            for node in followers:
                os.kill(node.pid, signal.SIGCONT)


class Shape:
    """Several nodes that are one Redis. Inside of the `with` this process and the workers it starts use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._begin(stack)
            default = {**settings.CACHES["default"], "LOCATION": self.location(), "OPTIONS": self.options()}
            stack.enter_context(override_settings(CACHES={**settings.CACHES, "default": default}))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _begin(self, stack: ExitStack) -> None:
        raise NotImplementedError

    def location(self) -> str:
        """Return LOCATION of the alias."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return OPTIONS of the alias."""
        raise NotImplementedError

    def _followers(self, primary: Node) -> list[Node]:
        return [node for node in self.nodes if node.up and node.follows(primary)]

    def _start(self, stack: ExitStack, name: str, port: int, *options: str) -> Node:
        node = Node(self.folder / name, port, *options)
        node.start()
        stack.callback(node.stop)
        self.nodes.append(node)
        return node


class Sentinels(Shape):
    """One master, two replicas, three Sentinels."""

    def _begin(self, stack: ExitStack) -> None:
        first, *others = free_ports(3)
        self._start(stack, "master", first)
        for number, port in enumerate(others):
            self._start(stack, f"replica{number}", port, "--replicaof", "127.0.0.1", str(first))
        # The Sentinels ask the master at their start who follows it, and then only every 10 s.
        wait_until(lambda: len(self.nodes[0].call("ROLE")[2]) == 2, what="the replicas to follow")
        self.sentinels = free_ports(3)
        for port in self.sentinels:
            stack.enter_context(_sentinel(self.folder, port, first))
        wait_until(lambda: all(self._ready(port) for port in self.sentinels), 30, "the Sentinels to know each other")

    def _ready(self, port: int) -> bool:
        with suppress(redis.RedisError), redis.Redis(host="127.0.0.1", port=port, decode_responses=True) as client:
            known = client.sentinel_master(MASTER)
            return known["num-slaves"] == 2 and known["num-other-sentinels"] == 2
        return False

    def location(self) -> str:
        """Return the name of the master."""
        return f"redis://{MASTER}/0"

    def options(self) -> dict[str, Any]:
        """Return what django-redis' documentation says."""
        return {
            "CLIENT_CLASS": "django_redis.client.DefaultClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [["127.0.0.1", port] for port in self.sentinels],
        }

    @property
    def master(self) -> Node:
        """The master as most of the Sentinels see it."""
        ports = []
        for port in self.sentinels:
            with suppress(redis.RedisError), redis.Redis(host="127.0.0.1", port=port, decode_responses=True) as client:
                ports.append(int(client.sentinel_get_master_addr_by_name(MASTER)[1]))
        most = max(set(ports), key=ports.count)
        return next(node for node in self.nodes if node.port == most)

    def whole(self) -> bool:
        """Say whether the master has both replicas, and the Sentinels agree on it."""
        role = self.master.call("ROLE")
        return role[0] == "master" and len(role[2]) == 2 and all(self._ready(port) for port in self.sentinels)

    def hand_over(self) -> None:
        """Have a replica made the master, and return when the former one, which stays up, has become a replica.

        Sentinel tells it seconds after it has told everybody else: until then it takes writes, which are lost.
        """
        former = self.master
        with redis.Redis(host="127.0.0.1", port=self.sentinels[0]) as client:
            client.execute_command("SENTINEL", "FAILOVER", MASTER)
        wait_until(lambda: self.master is not former, 30, "another master")
        wait_until(lambda: self._obeys(former), 30, "the former master to follow")

    def _obeys(self, former: Node) -> bool:
        with suppress(redis.ConnectionError):  # with the order its clients' connections are closed
            return former.follows(self.master)
        return False

    def fail_over(self, lost_seconds: float) -> Node:
        """Kill the master after it has accepted writes for so long that nobody else has; return it when one follows."""
        former = self.master
        try:
            former.die_alone(self._followers(former), lost_seconds, WITNESS)
        except redis.ReadOnlyError:  # the Sentinels were just moving it, because the machine is busy
            wait_until(self.whole, 60, "the end of a failover that nobody asked for")
            return self.fail_over(lost_seconds)
        wait_until(lambda: self.master is not former, 30, "another master")
        assert self.master.call("GET", WITNESS) is None, "nothing was lost"
        return former


@contextmanager
def _sentinel(folder: Path, port: int, master: int) -> Iterator[None]:
    config = folder / f"sentinel-{port}.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {MASTER} 127.0.0.1 {master} 2\n"
        f"sentinel down-after-milliseconds {MASTER} {DOWN_MS}\n"
        f"sentinel failover-timeout {MASTER} 6000\n"
    )
    with (folder / f"sentinel-{port}.log").open("wb") as log:
        process = subprocess.Popen([str(find_server()), str(config), "--sentinel"], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Cluster(Shape):
    """Three primaries with a replica each, or without."""

    def __init__(self, folder: Path, *, replicas: bool = True) -> None:
        super().__init__(folder)
        self.size = NODES if replicas else PRIMARIES

    def _begin(self, stack: ExitStack) -> None:
        for number, port in enumerate(free_ports(self.size)):
            timeout = ("--cluster-node-timeout", str(DOWN_MS))
            self._start(stack, f"node{number}", port, "--cluster-enabled", "yes", *timeout)
        first = self.nodes[0]
        for number, node in enumerate(self.nodes[:PRIMARIES]):
            begin, end = SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES
            node.call("CLUSTER", "ADDSLOTS", *range(begin, end))
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.call("CLUSTER", "MEET", "127.0.0.1", first.port)
        wait_until(
            lambda: all(self._about(node)["cluster_known_nodes"] == str(self.size) for node in self.nodes),
            30,
            "the nodes to know each other",
        )
        for number, node in enumerate(self.nodes[PRIMARIES:]):
            node.call("CLUSTER", "REPLICATE", self.nodes[number].call("CLUSTER", "MYID"))
        wait_until(self.whole, 30, "the cluster")

    def _about(self, node: Node) -> dict[str, str]:
        lines = node.call("CLUSTER", "INFO").split()
        return dict(line.split(":", 1) for line in lines)

    def whole(self) -> bool:
        """Say whether all nodes are up, all slots are served, and each primary has its replica if it is to."""
        if not all(node.up and self._about(node)["cluster_state"] == "ok" for node in self.nodes):
            return False
        roles = [node.call("ROLE") for node in self.nodes]
        followers = [len(role[2]) for role in roles if role[0] == "master"]
        return len(followers) == PRIMARIES and PRIMARIES + sum(followers) == self.size

    def location(self) -> str:
        """Return two of the nodes."""
        return ",".join(f"redis://127.0.0.1:{node.port}" for node in self.nodes[:2])

    def options(self) -> dict[str, Any]:
        """Return what the README says."""
        return {"CONNECTION_FACTORY": "django_delayq.index.connection.ClusterConnectionFactory"}

    def slot_of(self, prefix: str, place: Shard) -> int:
        """Return the slot of a shard."""
        return int(self._anyone().call("CLUSTER", "KEYSLOT", build_keys(prefix, place)["due"]))

    def owner(self, slot: int) -> Node:
        """Return the primary that has a slot."""
        for begin, end, primary, *_ in self._anyone().call("CLUSTER", "SLOTS"):
            if begin <= slot <= end:
                return next(node for node in self.nodes if node.port == int(primary[1]))
        raise AssertionError(f"nobody has slot {slot}")

    def primaries(self) -> list[Node]:
        """Return the nodes that have slots."""
        return [node for node in self.nodes if node.up and node.call("ROLE")[0] == "master"]

    def _anyone(self) -> Node:
        return next(node for node in self.nodes if node.up)

    def fail_over(self, slot: int, lost_seconds: float) -> Node:
        """Kill the owner of a slot after it has accepted writes for so long that nobody else has; return it."""
        former = self.owner(slot)
        witness = next(f"{WITNESS}{n}" for n in range(SLOTS * 20) if key_slot(f"{WITNESS}{n}".encode()) == slot)
        former.die_alone(self._followers(former), lost_seconds, witness)
        wait_until(lambda: self.owner(slot) is not former, 30, "another owner")
        assert self.owner(slot).call("GET", witness) is None, "nothing was lost"
        return former

    def move(self, slot: int, target: Node) -> int:
        """Move a slot key by key, as a resharding does; return how many keys there were."""
        source = self.owner(slot)
        ids = {node: node.call("CLUSTER", "MYID") for node in (source, target)}
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        moved = 0
        while names := source.call("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS", *names)
            moved += len(names)
            time.sleep(0.01)
        for node in (target, source, *self.primaries()):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        return moved


SHAPES = {"cluster": Cluster, "sentinel": Sentinels}
