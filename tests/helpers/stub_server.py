"""A server in place of a worker, with the answers that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from tuplewire.settings.config import PROTOCOL_VERSION
from tuplewire.wire import messaging_pb2 as pb

Answer = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


def welcome(**changes: Any) -> bytes:
    """Return the response to a hello. changes: fields with other values."""
    fields: dict[str, Any] = {
        "protocol_version": PROTOCOL_VERSION,
        "receiver_id": "far",
        "receiver_incarnation": 1,
        "initial_credit": pb.TaskCredit(messages=1000, bytes=1 << 20),
        "max_message_bytes": 1 << 20,
        "max_frame_bytes": 1 << 22,
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
