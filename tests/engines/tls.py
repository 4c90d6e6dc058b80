"""A server behind TLS with a certificate of the test's own: the embedded binary may be built without TLS."""

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import trustme


class TLSFront:
    """Terminates TLS on a port of loopback and passes the bytes on to a unix socket."""

    def __init__(self, target: Path, folder: Path) -> None:
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self._context)
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, name="tls", daemon=True)
        self._serving: list[threading.Thread] = []

    def __enter__(self) -> "TLSFront":
        self._acceptor.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Return once all that was accepted is closed, by the threads that serve it."""
        self._hang_up(self._listener)
        self._acceptor.join()
        self._listener.close()
        while serving := [thread for thread in self._serving if thread.is_alive()]:
            for each in [*self._open]:
                self._hang_up(each)
            serving[0].join(0.05)

    @staticmethod
    def _hang_up(each: socket.socket) -> None:
        with suppress(OSError):  # it is closed already
            each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                self._open.append(raw)
                self._serving.append(threading.Thread(target=self._serve, args=(raw,), daemon=True))
                self._serving[-1].start()

    def _serve(self, raw: socket.socket) -> None:
        with (
            suppress(OSError),  # ssl.SSLError is one: a client that does not trust us
            self._context.wrap_socket(raw, server_side=True) as client,
            socket.socket(socket.AF_UNIX) as server,
        ):
            server.connect(self._target)
            self._open += [client, server]
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
