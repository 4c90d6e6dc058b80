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

    def __enter__(self) -> "TLSFront":
        threading.Thread(target=self._accept, name="tls", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with suppress(OSError):  # ssl.SSLError is one: a client that does not trust us
            client = self._context.wrap_socket(raw, server_side=True)
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._open += [client, server]
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
