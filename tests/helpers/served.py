"""Servers that answer as a test chooses, in place of external services (HTTP) and of a worker (gRPC)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import grpc

from tuplewire.settings.config import PROTOCOL_VERSION
from tuplewire.wire import messaging_pb2 as pb

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
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: HTTPStatus, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


Answer = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


def welcome(**changes: Any) -> bytes:
    """Return the response to a hello. changes: fields with other values."""
    fields: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "worker_id": "far",
        "session_id": 1,
        "initial_credit": pb.TaskCredit(messages=1000, bytes=1 << 20),
        "max_message_bytes": 1 << 20,
        "max_request_bytes": 1 << 22,
        **changes,
    }
    return pb.SendResponse(welcome=pb.Welcome(**fields)).SerializeToString()


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def service(self, _details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._answer)


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Run a server that answers each stream in this way, and yield its address."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((_Handler(answer),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()
