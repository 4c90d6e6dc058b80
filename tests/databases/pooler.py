"""A real PgBouncer in front of the test database, which gives a connection away after each transaction."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psycopg
from django.db import connection

from tests.acceptance.support import PATIENCE_SECONDS, wait_until

#: Fewer than a worker has threads: they must take turns.
SERVERS = 3


def find_pooler() -> str | None:
    """Return the path of the program, which Debian installs where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Pooler:
    """As a context manager: runs PgBouncer with `pool_mode = transaction` on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        connection.ensure_connection()
        there: Any = connection.connection.info
        self._target = {"host": there.host, "port": there.port, "user": there.user, "password": there.password}
        self._target["pool_size"] = SERVERS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to go through it."""
        where = {"DELAYQ_TEST_POOLER_HOST": "127.0.0.1", "DELAYQ_TEST_POOLER_PORT": str(self.port)}
        return {"DJANGO_SETTINGS_MODULE": "tests.databases.pooled", **where}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, for the first time or again."""
        words = " ".join(f"{name}={value}" for name, value in self._target.items() if value)
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = {words}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            "unix_socket_dir =\nauth_type = any\npool_mode = transaction\nmax_client_conn = 200\n"
            "server_round_robin = 1\n"  # no client gets the same connection twice in a row
            "ignore_startup_parameters = extra_float_digits\nadmin_users = postgres\n"
        )
        program = [str(find_pooler()), str(configuration)]
        if os.getuid() == 0:  # it refuses to be root
            for parent in (configuration.parent, *configuration.parents):
                if parent.is_relative_to("/tmp"):  # noqa: S108 - pytest's folders are closed to others
                    with suppress(PermissionError):
                        parent.chmod(parent.stat().st_mode | 0o055)
            program += ["-u", "nobody"]
        with (self.folder / "pgbouncer.log").open("ab") as log:
            self._process = subprocess.Popen(program, stdout=log, stderr=log)
        wait_until(self._answers, 10, f"PgBouncer: {self.log()}")

    def _answers(self) -> bool:
        with suppress(psycopg.Error):
            with psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="pgbouncer") as admin:
                admin.autocommit = True
            return True
        return False

    def stop(self) -> None:
        """End it and all that it serves at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)

    def log(self) -> str:
        """Return what it has printed."""
        file = self.folder / "pgbouncer.log"
        return file.read_text(errors="replace")[-2000:] if file.exists() else ""

    @contextmanager
    def here(self) -> Iterator[None]:
        """Lead this process through it, too: as a web process that saves schedules."""
        database: Any = connection.settings_dict
        before = {name: database[name] for name in ("HOST", "PORT")}
        connection.close()
        database.update(HOST="127.0.0.1", PORT=str(self.port))
        try:
            yield
        finally:
            connection.close()
            database.update(before)
