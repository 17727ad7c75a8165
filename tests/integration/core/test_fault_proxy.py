"""The fault proxy applies exactly the faults that a test sets, on TCP and on Unix sockets."""

from __future__ import annotations

import gc
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from helpers.http2 import connected
from helpers.program import in_threads

from tuplewire_service.testing import eventually
from tuplewire_service.testing.fault_proxy import Direction, FaultProxy

_DEADLINE_SECONDS = 20.0
_QUIET_SECONDS = 0.2
Ends = tuple[FaultProxy, socket.socket, socket.socket]


class Target:
    """Accepts connections and returns each one as a socket."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    @property
    def address(self) -> str:
        if self._listener.family == socket.AF_UNIX:
            return f"unix://{self._listener.getsockname()}"
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(_DEADLINE_SECONDS)
        return connection


@pytest.fixture(params=["tcp", "unix"])
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FaultProxy, Target]]:
    """Run a proxy in front of a target, over TCP or over Unix sockets."""
    if request.param == "unix":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "target.sock"))
        listener.listen()
        listen = f"unix://{tmp_path}/proxy.sock"
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        listen = "127.0.0.1:0"
    listener.settimeout(_DEADLINE_SECONDS)
    with closing(listener):
        target = Target(listener)
        with FaultProxy(target.address, listen) as proxy:
            yield proxy, target


@pytest.fixture
def ends(proxy: tuple[FaultProxy, Target]) -> Iterator[Ends]:
    """Connect through a proxy, and yield it with both ends."""
    with connected(proxy[0].address, _DEADLINE_SECONDS) as near, proxy[1].accept() as far:
        yield proxy[0], near, far


def take(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes."""
    data = b""
    while len(data) < size:
        data += (piece := connection.recv(size - len(data)))
        assert piece, f"the connection ended after {len(data)} of {size} bytes"
    return data


def silent(connection: socket.socket) -> bool:
    """Return True if, for a short time, neither a byte nor the end of the connection arrives."""
    connection.settimeout(_QUIET_SECONDS)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(_DEADLINE_SECONDS)
    return False


def ended(connection: socket.socket) -> bool:
    """Wait for the next byte; True if the connection is closed or reset instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_passes_bytes_and_ends_on(ends: Ends) -> None:
    """Without a fault, all bytes arrive unchanged both ways, followed by the close of the connection."""
    data = os.urandom(3_000_000)
    proxy, near, far = ends
    for sender, receiver in ((near, far), (far, near)):
        with in_threads(partial(sender.sendall, data)):
            assert take(receiver, len(data)) == data
    near.sendall(b"last")
    near.shutdown(socket.SHUT_WR)
    assert take(far, 4) == b"last"
    assert far.recv(1) == b""
    far.sendall(data)
    far.close()
    assert take(near, len(data)) == data
    assert near.recv(1) == b""
    near.close()
    eventually(lambda: proxy.connection_count == 0)


def test_black_hole_holds_bytes_and_ends_back(ends: Ends) -> None:
    """A black hole delays bytes and the close of a peer; after it, both arrive in order."""
    proxy, near, far = ends
    proxy.black_hole()
    near.sendall(b"one")
    far.sendall(b"two")
    far.close()
    assert silent(near)
    proxy.resume()
    assert take(near, 3) == b"two"
    near.shutdown(socket.SHUT_WR)
    assert ended(near)


def test_black_hole_takes_new_connections(proxy: tuple[FaultProxy, Target]) -> None:
    """A black hole accepts a new connection, which carries no bytes until the black hole ends."""
    proxy[0].black_hole()
    with connected(proxy[0].address, _DEADLINE_SECONDS) as near, proxy[1].accept() as far:
        near.sendall(b"one")
        assert silent(far)
        proxy[0].resume()
        assert take(far, 3) == b"one"


@pytest.mark.parametrize("dead", list(Direction))
def test_half_open(ends: Ends, dead: Direction) -> None:
    """With one direction blocked, the other works; bytes sent the blocked way arrive later."""
    proxy, near, far = ends
    deaf, hears = (near, far) if dead is Direction.TO_CLIENT else (far, near)
    proxy.half_open(dead)
    hears.sendall(b"lost?")
    deaf.sendall(b"heard")
    assert take(hears, 5) == b"heard"
    assert silent(deaf)
    proxy.resume()
    assert take(deaf, 5) == b"lost?"


def test_half_open_hides_the_end_of_a_peer(ends: Ends) -> None:
    """The close of a peer is hidden until the proxy resumes."""
    proxy, near, far = ends
    proxy.half_open()
    far.close()
    assert silent(near)
    proxy.resume()
    assert ended(near)


def test_delay(ends: Ends) -> None:
    """With a delay, all bytes arrive both ways; resume() ends a long delay."""
    data = os.urandom(1_000_000)
    proxy, near, far = ends
    proxy.delay(0.05)
    near.sendall(data)
    assert take(far, len(data)) == data
    far.sendall(b"back")
    assert take(near, 4) == b"back"
    proxy.delay(1000)
    near.sendall(b"held")
    assert silent(far)
    proxy.resume()
    assert take(far, 4) == b"held"


def test_throttle(ends: Ends) -> None:
    """A throttled connection forwards all bytes at its rate; resume() releases the rest."""
    data = os.urandom(50_000)
    proxy, near, far = ends
    proxy.throttle(1_000_000)
    near.sendall(data)
    assert take(far, len(data)) == data
    proxy.throttle(0.001)
    near.sendall(data)
    assert take(far, 1) == data[:1]
    assert silent(far)
    proxy.resume()
    assert take(far, len(data) - 1) == data[1:]


def test_faults_add_up(ends: Ends) -> None:
    """A second fault does not end the first, and one resume() ends both."""
    proxy, near, far = ends
    proxy.half_open(Direction.TO_TARGET)
    proxy.delay(1000)
    near.sendall(b"there")
    far.sendall(b"back")
    assert silent(near)
    proxy.half_open(Direction.TO_CLIENT)
    assert proxy.conditions.silent_directions == frozenset(Direction)
    proxy.resume()
    assert (take(far, 5), take(near, 4)) == (b"there", b"back")


def test_cut_ends_both_sides(ends: Ends, proxy: tuple[FaultProxy, Target]) -> None:
    """A cut closes all connections on both sides, even in a black hole; new connections are accepted."""
    _, near, far = ends
    proxy[0].black_hole()
    assert proxy[0].cut() == 1
    assert ended(near)
    assert ended(far)
    proxy[0].resume()
    with connected(proxy[0].address, _DEADLINE_SECONDS) as near, proxy[1].accept() as far:
        near.sendall(b"one")
        assert take(far, 3) == b"one"


def test_a_reset_is_passed_on(ends: Ends) -> None:
    """If one end resets the connection, the other end is reset, too; a Unix socket is only closed."""
    proxy, near, far = ends
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    if near.family == socket.AF_UNIX:
        assert near.recv(1) == b""
    else:
        with pytest.raises(ConnectionResetError):
            near.recv(1)
    near.close()
    eventually(lambda: proxy.connection_count == 0)


def test_an_absent_target_is_a_reset(tmp_path: Path) -> None:
    """A connection to a target that does not listen is accepted and then closed."""
    with (
        FaultProxy(f"unix://{tmp_path}/nobody.sock") as proxy,
        suppress(ConnectionResetError),  # the reset may come before connect() returns
        connected(proxy.address, _DEADLINE_SECONDS) as near,
    ):
        assert ended(near)


@pytest.mark.parametrize(
    "fault",
    [
        lambda proxy: proxy.delay(-1),
        lambda proxy: proxy.delay(float("inf")),
        lambda proxy: proxy.throttle(0),
        lambda proxy: proxy.throttle(float("nan")),
    ],
)
def test_values_are_checked(proxy: tuple[FaultProxy, Target], fault: Callable[[FaultProxy], None]) -> None:
    """An invalid delay or rate is refused, and changes nothing."""
    before = proxy[0].conditions
    with pytest.raises(ValueError, match="must be"):
        fault(proxy[0])
    assert proxy[0].conditions == before


def test_memory_is_bounded(ends: Ends) -> None:
    """In a black hole, a sender is blocked after some megabytes."""
    proxy, near, _ = ends
    proxy.black_hole()
    near.settimeout(1.0)
    sent = 0
    with suppress(TimeoutError):
        while sent < 200_000_000:
            sent += near.send(bytes(100_000))
    assert sent < 100_000_000


def test_a_connection_that_comes_with_the_end_is_closed() -> None:
    """A connection made while the proxy closes is closed at any stage; a leaked one would raise a warning."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        for _ in range(50):
            with FaultProxy(f"127.0.0.1:{target.getsockname()[1]}") as proxy:
                late = [connected(proxy.address, _DEADLINE_SECONDS) for _ in range(3)]
            for each in late:
                each.close()
    gc.collect()
