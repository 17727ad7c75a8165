"""A client for the functions that Spark runs: it travels with them, and a process has one connection."""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from tuplewire.channel import ADDRESS_VARIABLE, resolve_address
from tuplewire.client import Client, Subscription
from tuplewire.config import SessionSettings
from tuplewire.credentials import Credentials
from tuplewire.errors import ClosedError, TuplewireError
from tuplewire.message import TaskMessage, TaskMessageBatch
from tuplewire.spark.shipped import Shipped

_Key = tuple[Any, ...]
_clients: dict[_Key, Client] = {}
"""The connected clients of this process, which outlives Spark tasks and jobs."""
_left_open: dict[_Key, TaskClient] = {}
"""The last block of each that was entered and not left."""


def _forget() -> None:
    _clients.clear()
    _left_open.clear()


os.register_at_fork(after_in_child=_forget)


def close_clients() -> None:
    """Close the connections of this process, for a driver that goes on without; the next use connects."""
    for key in list(_clients):
        _discard(key)


class ForgottenFlushError(TuplewireError):
    """Messages were handed over, and nobody has waited until they were acknowledged: they may be lost."""


class TaskClient:
    """A process's client, for as long as the `with` block of a ClientHandle lasts."""

    def __init__(self, client: Client, attempt: int | None) -> None:
        self.attempt = attempt
        """The taskAttemptId of the Spark task; None in the driver."""
        self.sent = False
        self._client: Client | None = client

    def _open(self) -> Client:
        if self._client is None:
            raise ClosedError(
                "the `with` block of this client is over, and with it the wait for acknowledgements: send "
                "and receive within the block (a generator's is over when it has yielded everything)"
            )
        return self._client

    def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], *, timeout: float | None = None
    ) -> None:
        """See Client.send. Raises ClosedError after the block."""
        client = self._open()
        self.sent = True
        client.send(messages, timeout=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """See Client.flush; leaving the block does it, too."""
        self._open().flush(timeout)

    def recv(self, tasks: Iterable[int], *, timeout: float | None = None) -> Subscription:
        """See Client.recv; close what it returns within the block."""
        return self._open().recv(tasks, timeout=timeout)

    def leave(self) -> None:
        """Refuse everything from now on."""
        self._client = None


class ClientHandle(Shipped):
    """Describes a client, for the functions of mapInArrow, foreachPartition, foreachBatch and the like.

    ::

        worker = ClientHandle()

        def send(batches):
            with worker as client:
                for batch in batches:
                    client.send(TaskMessageBatch.from_arrow(batch["task"], batch["message"]))
                    yield batch

    Nothing is connected before `with`. All handles of a process with the same settings share one connection,
    also from one Spark job to the next. Leaving the block waits until everything is acknowledged, and raises
    when something is not: Spark ends its Python processes without giving them a chance to finish. So there is
    no way to send but within the block.

    Guarantee: what a task that has succeeded has sent was acknowledged. A task that Spark runs again sends
    again; the sink (`.write.format("tuplewire")`) is what sorts attempts out.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        topology: str | None = None,
        source: int | None = None,
        timeout: float = 60.0,
        credentials: Credentials | None = None,
        **settings: Any,
    ) -> None:
        """Describe it; the arguments are those of tuplewire.Client.

        address: by default that of TUPLEWIRE_ADDRESS where the function runs. timeout: seconds that leaving
        the block waits. credentials: names of files where the function runs; by default those of
        TUPLEWIRE_TLS_CA, TUPLEWIRE_TOKEN_FILE and so on, there. Raises ConfigError for wrong settings.
        """
        SessionSettings.of(**settings)
        if address is not None:
            resolve_address(address)
        self._arguments = {
            "address": address,
            "topology": topology,
            "source": source,
            "credentials": credentials,
            **settings,
        }
        self._timeout = timeout
        self._entered: list[TaskClient] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_entered": []}

    def __repr__(self) -> str:
        where = self._arguments["address"] or f"${ADDRESS_VARIABLE}"
        return f"<ClientHandle {where}>"

    def _key(self) -> _Key:
        arguments = self._arguments | {"address": resolve_address(self._arguments["address"])}
        return tuple(sorted(arguments.items()))

    def __enter__(self) -> TaskClient:
        """Return the process's client.

        Raises ForgottenFlushError when a Spark task before this one has sent and never left its block.
        """
        key = self._key()
        attempt = _attempt()
        before = _left_open.pop(key, None)
        if before is not None and before.sent and before.attempt not in {None, attempt}:
            _discard(key)
            raise ForgottenFlushError(
                f"Spark's task attempt {before.attempt} has sent messages and ended without leaving its "
                "`with` block, so that nobody waited until they were acknowledged: use `with`, and let "
                "generators run to their end"
            )
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = Client(**self._arguments)
        _left_open[key] = entered = TaskClient(client, attempt)
        self._entered.append(entered)
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for acknowledgements; after an error give up what was not sent yet.

        Raises FlushTimeoutError, RefusedMessagesError, or what has ended the session; the connection is then
        given up, and the next block makes a new one.
        """
        key = self._key()
        entered = self._entered.pop()
        if _left_open.get(key) is entered:
            del _left_open[key]
        try:
            if kind is not None and not issubclass(kind, GeneratorExit):
                _discard(key)
            else:
                entered.flush(self._timeout)
        except TuplewireError:
            _discard(key)
            raise
        finally:
            entered.leave()


def _attempt() -> int | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.taskAttemptId()


def _discard(key: _Key) -> None:
    client = _clients.pop(key, None)
    if client is not None:
        client.close(timeout=0)
