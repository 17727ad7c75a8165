"""The workers' control services, asked side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError, UnreachableError
from tuplewire.identity.credentials import Credentials
from tuplewire.membership.registry import Report
from tuplewire.wire import control_pb2

_AT_ONCE = 16
_Answer = TypeVar("_Answer")


class Contacts:
    """A client for each worker that is asked, kept while it answers. Belongs to one thread.

    timeout: of each call, in seconds. credentials: see ControlClient.
    """

    def __init__(self, timeout: float, credentials: Credentials | None = None) -> None:
        self._timeout = timeout
        self._credentials = credentials
        self._clients: dict[str, ControlClient] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "tuplewire-contact")

    def close(self) -> None:
        """Close the clients, and end the threads."""
        self._pool.shutdown()
        for address in list(self._clients):
            self._drop(address)

    def ask(self, addresses: Iterable[str], version: int) -> dict[str, Report | TuplewireError]:
        """Return what each worker says of itself, or why not. version: of our own assignment."""
        wanted = list(addresses)
        for address in self._clients.keys() - wanted:
            self._drop(address)
        return self._each(wanted, partial(_report, version))

    def tell(
        self, addresses: Iterable[str], assignment: control_pb2.Assignment
    ) -> dict[str, bool | TuplewireError]:
        """Give each worker an assignment; return what has come of it."""
        return self._each(addresses, lambda control: control.update_assignment(assignment))

    def _each(
        self, addresses: Iterable[str], call: Callable[[ControlClient], _Answer]
    ) -> dict[str, _Answer | TuplewireError]:
        def outcome(address: str) -> _Answer | TuplewireError:
            try:
                return call(self._client(address))
            except TuplewireError as error:
                return error

        answers = dict(zip(addresses, self._pool.map(outcome, addresses), strict=True))
        for address, answer in answers.items():
            if isinstance(answer, UnreachableError):
                self._drop(address)  # the channel would wait longer and longer before it tries again
        return answers

    def _client(self, address: str) -> ControlClient:
        client = self._clients.get(address)
        if client is None:
            client = ControlClient(address, self._timeout, credentials=self._credentials)
            self._clients[address] = client
        return client

    def _drop(self, address: str) -> None:
        self._clients.pop(address).close()


def _report(version: int, control: ControlClient) -> Report:
    status = control.status()
    return Report(status, control.assignment() if status.assignment_version > version else None)
