"""Servers of HTTP that stand in for others' in a test: they answer while a block runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """Let a server answer while the block runs, on a thread that ends with it."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class JsonHandler(BaseHTTPRequestHandler):
    """Reads and answers JSON, and logs nothing.

    Its subclasses name BaseHTTPRequestHandler, too: the linter then knows why their methods are called so.
    """

    def body(self) -> bytes:
        """Read what was sent."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: HTTPStatus, body: Any) -> None:
        """Answer, and end the request."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
