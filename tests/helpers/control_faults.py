"""A gRPC proxy that loses and duplicates control messages, but never frames."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self

import grpc
import grpc.aio

from tuplewire.connection.grpc_channel import channel_options, server_options
from tuplewire.connection.loop import messaging_thread
from tuplewire.settings.config import SessionSettings
from tuplewire.wire import messaging_pb2 as pb

_SERVICE = "tuplewire.v1.Messaging"
_BROKEN = (grpc.RpcError, asyncio.InvalidStateError)
"""The exceptions of gRPC for a call that is already closed."""

_Context = grpc.aio.ServicerContext[Any, Any]


class Fate(enum.StrEnum):
    """The outcome of a control message."""

    PASSED = "passed"
    LOST = "lost"
    DOUBLED = "doubled"


_COPIES = {Fate.LOST: 0, Fate.DOUBLED: 2, Fate.PASSED: 1}


class _Kinds:
    """Recognizes the control messages of one direction by the tag of their only field."""

    def __init__(self, message: Any, *names: str) -> None:
        fields = message.DESCRIPTOR.fields_by_name
        self._names = {fields[name].number << 3 | 2: f"{message.DESCRIPTOR.name}.{name}" for name in names}

    def of(self, data: bytes) -> str | None:
        """Return the name of a control message, or None for any other message."""
        return self._names.get(data[0]) if data else None


_SEND = (
    _Kinds(pb.SendRequest, "watch_releases", "probe"),
    _Kinds(pb.SendResponse, "ack", "load", "backpressure"),
)
_RECV = (_Kinds(pb.RecvRequest, "progress"), _Kinds(pb.RecvResponse, "probe"))


class ControlFaults:
    """Forwards the Send and Recv streams between a worker and its clients, during a block.

    Messages are forwarded as bytes, in order. Metadata and the final status, with its trailing metadata, are
    forwarded too. Hello, Welcome, Subscribe, Subscribed, Drain, Goodbye and frames are never lost or
    duplicated. Do not call methods from the messaging loop's thread.
    """

    def __init__(self, target: str, *, seed: int = 0, lose: float = 0.3, double: float = 0.3) -> None:
        if not (lose >= 0 and double >= 0 and lose + double <= 1):
            raise ValueError(f"lose ({lose}) and double ({double}) are probabilities, at most 1 together")
        self.target = target
        self.address = ""
        """The address for clients, once started."""
        self.on = False
        """True while messages are lost and duplicated."""
        self.counts: Counter[tuple[str, Fate]] = Counter()
        """Outcomes of control messages while the faults were on, by name (`SendResponse.ack`)."""
        self._chance = random.Random(seed)
        self._weights = (lose, double, 1 - lose - double)
        self._settings = SessionSettings()
        self._thread = messaging_thread()

    def __enter__(self) -> Self:
        self._thread.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._server.stop(None))
        self._thread.fork_blocking_servers -= 1

    def begin(self) -> None:
        """Start to lose and duplicate messages."""
        self.on = True

    def heal(self) -> None:
        """Forward all messages again."""
        self.on = False

    def count(self, fate: Fate) -> int:
        """Return the number of control messages with this outcome while the faults were on."""
        return sum(number for (_, each), number in self.counts.items() if each is fate)

    async def _start(self) -> None:
        self._server = server = grpc.aio.server(options=server_options(self._settings))
        methods: dict[str, Any] = {
            name: grpc.stream_stream_rpc_method_handler(partial(self._carry, f"/{_SERVICE}/{name}", kinds))
            for name, kinds in (("Send", _SEND), ("Recv", _RECV))
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.address = f"127.0.0.1:{port}"
        self._thread.fork_blocking_servers += 1

    async def _carry(self, method: str, kinds: tuple[_Kinds, _Kinds], _: object, context: _Context) -> None:
        requests, responses = kinds
        # gRPC adds its own user-agent header.
        metadata = [(key, value) for key, value in context.invocation_metadata() or () if key != "user-agent"]
        options = channel_options(self._settings)
        async with grpc.aio.insecure_channel(self.target, options=options) as channel:
            call: Any = channel.stream_stream(method)(metadata=metadata)
            asking = asyncio.create_task(self._ask(context, call, requests), name=f"pass on {method}")
            try:
                with contextlib.suppress(*_BROKEN):
                    await self._pass_on(call.read, context.write, responses)
                code, details = await call.code(), await call.details()
                trailing = tuple(await call.trailing_metadata() or ())
            finally:
                call.cancel()
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
        if code is grpc.StatusCode.OK:
            context.set_trailing_metadata(trailing)
        else:
            await context.abort(code, details or "", trailing)

    async def _ask(self, context: _Context, call: Any, kinds: _Kinds) -> None:
        with contextlib.suppress(*_BROKEN):  # the answering side gets the error, and closes the stream
            await self._pass_on(context.read, call.write, kinds)
            await call.done_writing()

    async def _pass_on(
        self,
        read: Callable[[], Coroutine[Any, Any, Any]],
        write: Callable[[bytes], Coroutine[Any, Any, None]],
        kinds: _Kinds,
    ) -> None:
        while (data := await read()) is not grpc.aio.EOF:
            for _ in range(self._copies(kinds.of(data))):
                await write(data)

    def _copies(self, kind: str | None) -> int:
        if kind is None or not self.on:
            return 1
        ((fate, copies),) = self._chance.choices(list(_COPIES.items()), self._weights)
        self.counts[kind, fate] += 1
        return copies
