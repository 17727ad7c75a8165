"""The admin port: /metrics for Prometheus, /livez and /readyz for Kubernetes.

Used by process/main.py. Owns the listening socket, its connections and their threads. Thread-safe.
Design: docs/design/status.md.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client import CollectorRegistry

from tuplewire.errors import BindError
from tuplewire.settings.addresses import join_host_port, split_host_port
from tuplewire.text.events import event_logger
from tuplewire_service.metrics.families import encoder_for

logger = event_logger(__name__)

_MAX_CONNECTIONS = 16
_SILENCE_SECONDS = 5.0
_TEXT = "text/plain; charset=utf-8"
_PATHS = """Tuplewire worker

/metrics  counts and gauges, for Prometheus
/livez    200 while the event loop turns
/readyz   200 when ready, else 503 and the reason
"""

Probe = Callable[[], str]
"""Returns an empty string, or one line that describes the problem. Called from any thread."""


class AdminServer(socketserver.ThreadingMixIn, HTTPServer):
    """Serves the admin port in its own threads, from the construction until close().

    Raises BindError if the address cannot be bound. At most 16 connections are served at the same time. A new
    one replaces the oldest, and one that is silent for 5 seconds is closed, so slow clients block no probes.
    """

    allow_reuse_port = False
    request_queue_size = 64
    daemon_threads = False  # server_close() waits only for threads that are not daemons

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        live: Probe,
        ready: Probe,
    ) -> None:
        self.registry, self.live, self.ready = registry, live, ready
        self.scraped = threading.Event()
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
            raise BindError(
                f"cannot listen on {listen} for the admin port: {error.strerror}; "
                "stop what uses it, or choose another address with --admin"
            ) from error
        self.address = join_host_port(str(self.server_address[0]), int(self.server_address[1]))
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.25}, name="tuplewire-admin"
        )
        self._thread.start()

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics, for Prometheus."""
        return f"http://{self.address}/metrics"

    def await_scrape(self, timeout: float) -> None:
        """Wait until a scrape that starts from now on is complete, at most `timeout` seconds."""
        self.scraped = threading.Event()  # a scrape in progress sets the previous event
        self.scraped.wait(timeout)

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

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in this thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._open_lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as in the base class
        """Log an error, unless the client disconnected."""
        if not isinstance(sys.exception(), OSError):
            logger.error(
                "admin.request_failed", extra={"client": str(client_address)}, exc_info=sys.exception()
            )


def _shut_down(connection: socket.socket) -> None:
    """End a connection that another thread serves."""
    with contextlib.suppress(OSError):  # that thread may have closed it
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: AdminServer
    timeout = _SILENCE_SECONDS
    server_version = "tuplewire"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/livez":
            self._probe("live", self.server.live)
        elif path == "/readyz":
            self._probe("ready", self.server.ready)
        elif path == "/":
            self._answer(HTTPStatus.OK, _PATHS)
        else:
            self._answer(HTTPStatus.NOT_FOUND, f"there is no {path} here\n\n{_PATHS}")

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _metrics(self) -> None:
        encode, content_type = encoder_for(self.headers.get("Accept", ""))
        scraped = self.server.scraped  # before the values are read; see await_scrape()
        try:
            body = encode(self.server.registry)
        except Exception:
            logger.exception("admin.scrape_failed")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "the scrape failed; the log says why\n")
            return
        self._answer(HTTPStatus.OK, body, content_type)
        scraped.set()

    def _probe(self, word: str, probe: Probe) -> None:
        trouble = probe()
        if trouble:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"not {word}: {trouble}\n")
        else:
            self._answer(HTTPStatus.OK, f"{word}\n")

    def _answer(
        self,
        status: HTTPStatus,
        body: str | bytes,
        content_type: str = _TEXT,
    ) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because probes call every second."""
