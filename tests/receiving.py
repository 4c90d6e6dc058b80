"""A server that receives webhooks and pings, and remembers each request."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from tests.faults.harness.background import Background


class Request(NamedTuple):
    """What came; headers by their names in small letters."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver(Background):
    """Listens on a port of its own while the `with` lasts; answers with `status`, after `delay_seconds`."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.status, self.location, self.delay_seconds = 200, "", 0.0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.ended.wait(receiver.delay_seconds)
                receiver.requests.append(Request(self.path, headers, body))
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("location", receiver.location)
                self.end_headers()

            def do_GET(self) -> None:
                receiver.requests.append(Request(f"GET {self.path}", {}, b""))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._server.timeout = 0.02

    def watch(self) -> None:
        """Answer until the end."""
        with self._server:
            while not self.ended.is_set():
                self._server.handle_request()

    @property
    def url(self) -> str:
        """The address of the server's root, without a slash at its end."""
        return f"http://{self.host}"

    @property
    def paths(self) -> list[str]:
        """What was asked for, without its query."""
        return [request.path.partition("?")[0] for request in self.requests]
