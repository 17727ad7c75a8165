"""One control client for each of several workers, and parallel calls to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError

_MAX_PARALLEL = 32
_Answer = TypeVar("_Answer")


class ControlClients:
    """The clients of several workers, by address; `connect` creates one. Not thread-safe."""

    def __init__(self, connect: Callable[[str], ControlClient]) -> None:
        self._connect = connect
        self._clients: dict[str, ControlClient] = {}
        self._pool: ThreadPoolExecutor | None = None  # created by the first call: Spark pickles this

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, address: str) -> ControlClient:
        if address not in self._clients:
            self._clients[address] = self._connect(address)
        return self._clients[address]

    def call_all(
        self, addresses: Iterable[str], call: Callable[[ControlClient], _Answer]
    ) -> dict[str, _Answer | TuplewireError]:
        """Call each worker in parallel; return the results or errors by address."""

        def call_or_error(address: str) -> _Answer | TuplewireError:
            try:
                return call(self[address])
            except TuplewireError as error:
                return error

        wanted = list(addresses)
        self._pool = self._pool or ThreadPoolExecutor(_MAX_PARALLEL, "tuplewire-control")
        return dict(zip(wanted, self._pool.map(call_or_error, wanted), strict=True))

    def close_except(self, addresses: Iterable[str]) -> None:
        """Close the clients of all other workers."""
        for address in self._clients.keys() - addresses:
            self._clients.pop(address).close()

    def close(self) -> None:
        """Close all clients and the threads. Calls in progress end."""
        self.close_except(())
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
