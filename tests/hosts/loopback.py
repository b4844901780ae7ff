"""Owns a small HTTP server on 127.0.0.1, served by threads, and what its handlers share."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer


class Handler(BaseHTTPRequestHandler):
    """Quiet, keeps connections, answers JSON."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the fakes keep their own records."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def reply(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # HTTPServer asks DNS for its own name here, which can take minutes.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is normal here: gateways get killed."""


class Loopback:
    """Serves `handler` on a free loopback port until closed."""

    def __init__(self, handler: type[Handler]) -> None:
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._serve, name=f"loopback {self.url}", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)  # seconds; bounds close()

    def close(self) -> None:
        if not self.closing.is_set():
            self.closing.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
