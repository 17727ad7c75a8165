"""A gRPC server at fixed addresses, which is replaced if it fails.

The asyncio server of grpcio 1.84 and 1.85 fails at a call with a method name that is not UTF-8: its main loop
does not catch the decoding error, and stops listening. Open streams continue. A new server therefore replaces
it immediately, and the old one is kept until its last stream has finished. Used by grpc_transport.py. Owns
the servers. Call only from the event loop. Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from tuplewire.errors import BindError
from tuplewire.session.backoff import Backoff
from tuplewire.settings.addresses import grpc_target
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_MAIN_LOOP, _SHUTDOWN = "AioServer._server_main_loop", "AioServer.shutdown"
"""The coroutine that accepts calls, and the one that runs after its failure, in grpcio 1.74 to 1.85."""
_NO_LIMIT_SECONDS = 1e9
_POLLS, _POLL_SECONDS = 100, 0.01


@dataclass(eq=False)
class RestartingServer:
    """A sequence of servers at the same addresses. Call only from the event loop.

    Attributes:
        make_server: Returns an unbound server with its handlers.
        socket_mode: The file mode of Unix sockets; None: as the process's umask sets it.
        addresses: The bound addresses, host:port or unix:///path.
    """

    make_server: Callable[[], grpc.aio.Server]
    credentials: grpc.ServerCredentials | None
    backoff: Backoff
    socket_mode: int | None
    addresses: Sequence[str] = ()
    restarts: int = 0

    def __post_init__(self) -> None:
        self._servers: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self, addresses: Sequence[str]) -> None:
        """Bind all addresses; port 0 is any free port. Raises BindError."""
        server = self.make_server()
        try:
            self.addresses = [self._listen(server, address) for address in addresses]
        except BindError:
            await server.start()  # gRPC frees the addresses only of a started server
            await server.stop(None)
            raise
        await self._serve(server)

    async def stop(self, grace: float | None) -> None:
        """Stop listening; calls in progress get `grace` seconds, or none."""
        self._stopping = True
        # First the restarts in progress: they would bind the addresses again.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    def _listen(self, server: grpc.aio.Server, address: str) -> str:
        try:
            if address.startswith("unix:"):
                # A chmod() after the bind would leave the socket open to other users for a moment.
                umask = None if self.socket_mode is None else os.umask(0o777 & ~self.socket_mode)
                try:
                    server.add_insecure_port(grpc_target(address))
                finally:
                    if umask is not None:
                        os.umask(umask)  # it applies to the whole process
                return address
            if self.credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self.credentials)
        except RuntimeError as error:
            text = f"cannot listen on {address}: in use (by a worker?), or not of this host; change --listen"
            raise BindError(text) from error
        return f"{address.rpartition(':')[0]}:{port}"

    async def _serve(self, server: grpc.aio.Server) -> None:
        # grpcio does not report the end of its main loop. The task is found by its name; see
        # docs/design/forks-and-interrupts.md (a gRPC server that ends is replaced).
        tasks_before = asyncio.all_tasks()
        self._servers.append(server)
        await server.start()
        for task in _tasks_running(_MAIN_LOOP) - tasks_before:
            task.add_done_callback(lambda task: self._on_main_loop_end(server, task))

    def _on_main_loop_end(self, server: grpc.aio.Server, main_loop: asyncio.Task[None]) -> None:
        # A clean stop ends the main loop as well.
        if self._stopping:
            return
        self.restarts += 1
        reason = "cancelled" if main_loop.cancelled() else repr(main_loop.exception())
        logger.error("grpc_server.failed", extra={"addresses": self.addresses, "reason": reason})
        for task in _tasks_running(_SHUTDOWN):  # it fails with the same error, which is already logged
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        for coroutine in (self._await_streams(server), self._restart()):
            task = asyncio.get_running_loop().create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _await_streams(self, server: grpc.aio.Server) -> None:
        """Keep a failed server until its last stream has finished."""
        await server.stop(_NO_LIMIT_SECONDS)
        self._servers.remove(server)

    async def _restart(self) -> None:
        # Wait until the failed server has removed its sockets; otherwise it would remove the new ones.
        paths = [Path(each.removeprefix("unix://")) for each in self.addresses if each.startswith("unix:")]
        for _ in range(_POLLS):
            if not any(path.exists() for path in paths):
                break
            await asyncio.sleep(_POLL_SECONDS)
        server = self.make_server()
        try:
            for address in self.addresses:
                while True:
                    try:
                        self._listen(server, address)
                        break
                    except BindError as error:
                        logger.warning("grpc_server.not_bound", extra={"reason": str(error)})
                        await asyncio.sleep(self.backoff.next())
                self.backoff.reset()
        finally:  # gRPC frees the addresses only of a started server
            await self._serve(server)
        logger.info("grpc_server.restarted", extra={"addresses": self.addresses})


def _tasks_running(name: str) -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == name}
