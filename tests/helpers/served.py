"""HTTP servers that replace external services in a test. They answer during a block."""

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
    """Run a server during the block, on a separate thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class JsonHandler(BaseHTTPRequestHandler):
    """Reads and answers JSON without a log. Subclasses name BaseHTTPRequestHandler, too, for the linter."""

    def body(self) -> bytes:
        """Read the body of the request."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: HTTPStatus, body: Any) -> None:
        """Send the response."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
