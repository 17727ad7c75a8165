"""A gRPC server that fails is replaced by another one: streams continue, and new connections are served."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from helpers.ports import free_port

from tuplewire.errors import BindError
from tuplewire.session.backoff import Backoff
from tuplewire_service.messaging.grpc.restarting_server import RestartingServer
from tuplewire_service.testing import eventually

ECHO = "/test/Echo"
Stream = Any
ALONE = [("grpc.use_local_subchannel_pool", 1)]
"""Options of a channel that shares no connection."""


class _Handler(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._echo) if details.method == ECHO else None

    @staticmethod
    async def _echo(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


def _make() -> grpc.aio.Server:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(),))
    return server


def _main_loops(loop: asyncio.AbstractEventLoop | None = None) -> list[asyncio.Task[Any]]:
    names = {task: getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(loop)}
    return [task for task, name in names.items() if name == "AioServer._server_main_loop"]


async def _end_server(address: str) -> None:
    """Simulate a defect in grpcio: fail where the main loop has accepted a call and schedules it."""
    loop = asyncio.get_running_loop()
    (main_loop,) = _main_loops()
    calls: list[asyncio.Task[Any]] = []

    def failing(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        if getattr(coroutine, "__qualname__", "") != "_schedule_rpc_coro":
            return task
        loop.set_task_factory(None)
        calls.append(task)
        raise RuntimeError("for this test")

    loop.set_task_factory(failing)
    async with grpc.aio.insecure_channel(address, options=ALONE) as channel:
        call: Stream = channel.stream_stream(ECHO)(timeout=20)
        await asyncio.wait([main_loop])
        call.cancel()
        await asyncio.wait(calls)


async def _echoed(stream: Stream, said: bytes) -> bytes:
    await stream.write(said)
    return bytes(await stream.read())


async def _said_to(address: str) -> bytes:
    """Open a separate connection, and return the server's answer."""
    async with grpc.aio.insecure_channel(address, options=ALONE) as channel:
        return await _echoed(channel.stream_stream(ECHO)(wait_for_ready=True), b"new")


@asynccontextmanager
async def _served(path: Path) -> AsyncIterator[tuple[RestartingServer, str]]:
    """Run a server at a port and a socket; yield it with its address. Its main loop must end afterwards."""
    async with asyncio.timeout(30):
        server = RestartingServer(_make, None, Backoff(0.01, 0.1), 0o610)
        await server.start(["127.0.0.1:0", f"unix://{path}"])
        try:
            yield server, server.addresses[0]
        finally:
            await server.stop(0)
        assert not _main_loops()


async def _another() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(eventually, lambda: _main_loops(loop), 20, "another server")


async def test_a_failed_start_frees_the_addresses() -> None:
    """If one address is in use, the addresses before it are free again."""
    server = RestartingServer(_make, None, Backoff(0.01, 0.1), None)
    with socket.socket() as used, socket.socket() as other:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = free_port()
        with pytest.raises(BindError):
            await server.start([f"127.0.0.1:{port}", f"127.0.0.1:{used.getsockname()[1]}"])
        other.bind(("127.0.0.1", port))
    assert not _main_loops()


async def test_another_server_takes_its_place(tmp_path: Path) -> None:
    """After each failure, streams continue, and both addresses accept connections, with the same mode."""
    path = tmp_path / "socket"
    async with _served(path) as (server, address), grpc.aio.insecure_channel(address) as channel:
        stream: Stream = channel.stream_stream(ECHO)()
        assert await _echoed(stream, b"before") == b"before"
        for times in range(1, 4):
            assert stat.S_IMODE(path.stat().st_mode) == 0o610
            await _end_server(address)
            await _another()
            assert server.restarts == times
            assert await _echoed(stream, b"after") == b"after"
            assert await _said_to(address) == b"new"
            assert await _said_to(f"unix://{path}") == b"new"
        assert stat.S_IMODE(path.stat().st_mode) == 0o610


@asynccontextmanager
async def _unbound(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[tuple[RestartingServer, str]]:
    """Run a failed server. Its replacement cannot bind in the folder `sockets`, now named `elsewhere`."""
    path = folder / "sockets" / "socket"
    path.parent.mkdir()
    async with _served(path) as (server, address):
        path.parent.rename(folder / "elsewhere")
        await _end_server(address)
        await asyncio.to_thread(
            eventually, lambda: "grpc_server.not_bound" in caplog.text, 20, "a failure to bind"
        )
        yield server, address


async def test_an_address_that_cannot_be_bound_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing directory is logged, and the server starts again once the directory exists."""
    async with _unbound(tmp_path, caplog) as (_server, address):
        assert not _main_loops()
        (tmp_path / "elsewhere").rename(tmp_path / "sockets")
        await _another()
        assert await _said_to(address) == b"new"


async def test_a_stop_while_an_address_cannot_be_bound_frees_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Addresses that the replacement has already bound are released, so that no client waits there."""
    async with _unbound(tmp_path, caplog) as (server, address):
        port = int(address.rpartition(":")[2])
        assert not _is_free(port)
        await server.stop(0)
        assert not _main_loops()
        await asyncio.to_thread(eventually, lambda: _is_free(port), 10, "the port of the next server")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("grace", [0, None])
async def test_a_server_that_is_stopped_is_not_followed(tmp_path: Path, grace: float | None) -> None:
    """A stop is not a failure: no replacement is started."""
    async with _served(tmp_path / "socket") as (server, _address):
        await server.stop(grace)
        await asyncio.sleep(0)
        assert server.restarts == 0
