"""An HTTP server for a few pages. It serves the admin port, and the live page of `tuplewire top --web`.

Used by admin_server.py and command/viewer/live_page.py. Owns the listening socket, its connections and their
threads. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tuplewire.errors import BindError
from tuplewire.settings.addresses import join_host_port, split_host_port
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_MAX_CONNECTIONS = 16
_IDLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer to a request. `on_sent` is called when its body has been written."""

    body: str | bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"
    headers: Sequence[tuple[str, str]] = ()
    on_sent: Callable[[], object] | None = None


PageHandler = Callable[[Message], HttpResponse]
"""Returns the answer to a request with these headers. Called from any thread."""


class HttpServer(socketserver.ThreadingMixIn, HTTPServer):
    """Serves pages in its own threads, from the construction until close().

    Raises BindError if the address cannot be bound. At most 16 connections are served at the same time. A new
    one replaces the oldest, and one that is silent for 5 seconds is closed, so slow clients block no probes.
    """

    allow_reuse_port = False
    request_queue_size = 64
    daemon_threads = False  # server_close() waits only for threads that are not daemons

    def __init__(self, listen: str, pages: Mapping[str, PageHandler], purpose: str, advice: str) -> None:
        """Serve pages by their path. `purpose` and `advice` complete the BindError."""
        self.pages = pages
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._open_lock = threading.Lock()
        try:
            host, port = split_host_port(listen)
            if host == "::" and not socket.has_dualstack_ipv6():
                host = "0.0.0.0"  # noqa: S104 - as gRPC does if the kernel has no IPv6
            (self.address_family, _, _, _, bound) = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            super().__init__((str(bound[0]), int(bound[1])), _Handler)
        except OSError as error:
            raise BindError(f"cannot listen on {listen} for {purpose}: {error.strerror}; {advice}") from error
        self.address = join_host_port(str(self.server_address[0]), int(self.server_address[1]))
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.25}, name="tuplewire-http"
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end open connections."""
        self.shutdown()
        self._thread.join()
        with self._open_lock:
            for connection in self._open:
                _shut_down(connection)
        self.server_close()

    def server_bind(self) -> None:
        """Bind without HTTPServer's DNS lookup of the host, which may be slow and has no use here."""
        if self.address_family == socket.AF_INET6:  # `[::]` accepts IPv4 on every system, as in gRPC
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread. At the limit, end the oldest one."""
        with self._open_lock:
            if len(self._open) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _shut_down(oldest)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._open_lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as in the base class
        if not isinstance(sys.exception(), OSError):
            extra = {"client": str(client_address)}
            logger.error("http.request_failed", extra=extra, exc_info=sys.exception())


def _shut_down(connection: socket.socket) -> None:
    """End a connection that another thread serves."""
    with contextlib.suppress(OSError):  # that thread may have closed it
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    timeout = _IDLE_SECONDS
    server_version = "tuplewire"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if (page := self.server.pages.get(path)) is None:
            known = ", ".join(self.server.pages)
            answer = HttpResponse(f"not found: {path}; available pages: {known}\n", HTTPStatus.NOT_FOUND)
        else:
            answer = page(self.headers)
        data = answer.body.encode(errors="backslashreplace") if isinstance(answer.body, str) else answer.body
        self.send_response(answer.status)
        for name, value in (
            *answer.headers,
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        if answer.on_sent is not None:
            answer.on_sent()

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: Any) -> None:
        """Log nothing, because probes and browsers call every second."""
