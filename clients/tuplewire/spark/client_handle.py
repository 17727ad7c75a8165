"""A client for functions that Spark runs: pickled with them, with one connection for each process.

Used by programs, in functions that Spark runs. Owns the connected clients of the process, its open blocks,
and the failures that no caller has received. Thread-safe. Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Unpack, overload
from weakref import WeakValueDictionary

from tuplewire import tracing
from tuplewire.client import Client
from tuplewire.errors import ClosedError, RefusedMessagesError, TuplewireError
from tuplewire.identity.credentials import Credentials
from tuplewire.request_reply import AnswerMethods, Asker
from tuplewire.settings.addresses import ADDRESS_VARIABLE, resolve_address
from tuplewire.settings.config import SessionKeywords, SessionSettings, check_timeout, expand_settings
from tuplewire.spark.version_check import VersionChecked
from tuplewire.subscription import NotPicklable, Subscription
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.values.message import Headers, TaskMessage

_Key = tuple[Any, ...]
_clients: dict[_Key, Client] = {}
"""The connected clients of this process, which runs several Spark tasks and jobs."""
_open_blocks: WeakValueDictionary[_Key, BlockClient] = WeakValueDictionary()
"""The open blocks. References are weak, so that BlockClient.__del__ detects the lost blocks of a driver."""
_task_blocks: dict[_Key, BlockClient] = {}
"""The open blocks of a Spark task, which must stay alive until _end_spark_task() inspects them."""
_unreported_failures: list[str] = []
"""The failures that could not be raised where they happened."""
_lock = threading.RLock()


def _reset_after_fork() -> None:
    global _lock
    _clients.clear()
    _open_blocks.clear()
    _task_blocks.clear()
    _unreported_failures.clear()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_reset_after_fork)


def close_clients() -> None:
    """Close the connections of this process, for a driver that needs none for now. The next use connects."""
    for key in list(_clients):
        _discard(key)


class UnflushedMessagesError(TuplewireError):
    """Messages were sent without waiting for their acknowledgement: they may be lost."""


class BlockClient(NotPicklable, AnswerMethods):
    """A process's client during the `with` block of a ClientHandle. Open blocks of equal handles share it."""

    def __init__(self, client: Client, attempt: int | None) -> None:
        self._client: Client | None = client
        self._attempt = attempt
        self.depth = 0
        """The number of open blocks."""
        self._unflushed = False
        self._refused_count = _refused_count(client)

    def __del__(self) -> None:
        self.record_unflushed()

    def record_unflushed(self) -> None:
        """Record messages that no flush() has waited for. Any thread may call this, so it must not wait."""
        if self._client is not None and self._unflushed:
            source = "a function" if self._attempt is None else f"Spark's task attempt {self._attempt}"
            _unreported_failures.append(
                f"{source} has sent messages and ended without leaving its `with` block, so it did not wait "
                "until they were acknowledged: use `with`, and let generators run to their end"
            )

    def _get_open_client(self) -> Client:
        if self._client is None:
            raise ClosedError(
                "the `with` block of this client has been left, and the wait for acknowledgements is done: "
                "send and receive within the block (a generator leaves it after the last yield)"
            )
        return self._client

    @overload
    def send(
        self, messages: TaskMessageBatch | Iterable[TaskMessage], /, *, timeout: float | None = None
    ) -> None: ...
    @overload
    def send(
        self,
        task: int,
        payload: bytes,
        /,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timeout: float | None = None,
    ) -> None: ...
    def send(self, *arguments: Any, **keywords: Any) -> None:
        """See Client.send. Raises ClosedError after the block."""
        (self._client or self._get_open_client()).send(*arguments, **keywords)
        self._unflushed = True

    @overload
    def try_send(self, messages: TaskMessageBatch | Iterable[TaskMessage], /) -> bool: ...
    @overload
    def try_send(
        self, task: int, payload: bytes, /, *, key: bytes | None = None, headers: Headers | None = None
    ) -> bool: ...
    def try_send(self, *arguments: Any, **keywords: Any) -> bool:
        """See Client.try_send. Raises ClosedError after the block."""
        sent = self._get_open_client().try_send(*arguments, **keywords)
        self._unflushed |= sent
        return sent

    def flush(self, timeout: float | None = None) -> None:
        """See Client.flush; leaving the block also flushes."""
        client = self._get_open_client()
        self._unflushed = False  # before the wait: another thread may send during it
        try:
            client.flush(timeout)
            if _refused_count(client) > self._refused_count:  # another block has taken the reasons
                raise RefusedMessagesError(["the error of another block with this connection lists them"])
        except TuplewireError:
            self._unflushed = True
            if self.depth == 1:
                self._refused_count = _refused_count(client)
            raise

    def recv(
        self, tasks: int | Iterable[int], *, timeout: float | None = None, follow: bool = True
    ) -> Subscription:
        """See Client.recv; close the subscription in the block. follow=False: only this client's worker."""
        return self._get_open_client().recv(tasks, timeout=timeout, follow=follow)

    def asker(self, reply_to: int) -> Asker:
        """See Client.asker; close the asker within the block."""
        return self._get_open_client().asker(reply_to)

    def invalidate(self) -> None:
        """Raise ClosedError for every later call."""
        self._client = None


class ClientHandle(VersionChecked):
    """Describes a client, for the functions of mapInArrow, foreachPartition, foreachBatch and the like.

    ::

        worker = ClientHandle()

        def send(batches):
            with worker as client:
                for batch in batches:
                    client.send(TaskMessageBatch.from_arrow(batch["task"], batch["message"]))
                    yield batch

    All handles of a process with the same settings share a connection, also across Spark jobs; `with` opens
    it. Leaving the block waits until all messages are acknowledged, and raises an error if one is not. A task
    that ends without leaving its block fails with UnflushedMessagesError. In the driver (foreachBatch) there
    is no task: the next block raises the error, or the program prints it at exit.

    Guarantee: if a task succeeds and its function ran to the end, all its messages were acknowledged. If
    Spark reads only the first rows (`limit`, `take`, `show`), it does not wait for the end: call flush()
    before each `yield`. A task that Spark runs again sends its messages again; only the sink
    (`.write.format("tuplewire")`) removes the duplicates of attempts.

    Raises:
        FlushTimeoutError, RefusedMessagesError, RefusedError, ClosedError: See Client.flush(). On leaving the
            block, which then closes the connection. Other open blocks fail, too; the next opens a new one.
    """

    @expand_settings
    def __init__(
        self,
        address: str | None = None,
        *,
        topology: str | None = None,
        source: int | None = None,
        timeout: float = 60.0,
        credentials: Credentials | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None:
        """Describe a client; the other arguments are the same as for tuplewire.Client.

        Args:
            address: Default: TUPLEWIRE_ADDRESS in the process of the function.
            timeout: The maximum wait for acknowledgements at the end of the block, in seconds.
            credentials: Names of files on the host of the function. Default: its variables TUPLEWIRE_TLS_CA,
                TUPLEWIRE_TOKEN_FILE and so on.

        Raises:
            ConfigError: A setting is unknown or invalid.
        """
        SessionSettings.of(**settings)
        if address is not None:
            resolve_address(address)
        arguments = {"address": address, "topology": topology, "source": source, "credentials": credentials}
        self._arguments: dict[str, Any] = {**arguments, **settings}
        self._timeout = check_timeout(timeout)

    def __repr__(self) -> str:
        return f"<ClientHandle {self._arguments['address'] or f'${ADDRESS_VARIABLE}'}>"

    def _key(self) -> _Key:
        arguments = self._arguments | {"address": resolve_address(self._arguments["address"])}
        return tuple(sorted(arguments.items()))

    def __enter__(self) -> BlockClient:
        """Return the client. Raises UnflushedMessagesError in a driver if an earlier block was unflushed."""
        from pyspark import TaskContext

        key = self._key()
        context = TaskContext.get()
        attempt = None if context is None else context.taskAttemptId()
        if attempt is None:
            _raise_unreported()
        else:
            _hook_task_ends()
        with _lock:
            block = _open_blocks.get(key)
            if block is None:
                _clients[key] = client = _clients.get(key) or Client(**self._arguments)
                _open_blocks[key] = block = BlockClient(client, attempt)
                if attempt is not None:
                    _task_blocks[key] = block
            block.depth += 1
        return block

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for acknowledgements; after an error, drop the unacknowledged messages unless others wait.

        Raises FlushTimeoutError, RefusedMessagesError, or the error that ended the session. The connection is
        then closed, and the next block opens a new one.
        """
        key = self._key()
        block = _open_blocks.get(key)
        if block is None:
            return  # the client was not kept, so no messages were sent
        # A generator that is closed early, as with a limit, has not failed: its messages are flushed.
        abandoned = kind is not None and issubclass(kind, GeneratorExit)
        try:
            if kind is None or abandoned:
                block.flush(self._timeout)
            elif block.depth == 1:  # other threads, such as those of other queries, need the connection
                _discard(key)
        except TuplewireError as failure:
            _discard(key)
            if abandoned:  # Python ignores errors raised while an abandoned generator is closed
                _unreported_failures.append(
                    f"a generator was closed before its end, and its messages failed: {failure}"
                )
            raise
        finally:
            tracing.flush()  # does nothing without tracing
            with _lock:
                block.depth -= 1
                if not block.depth:
                    block.invalidate()
                    _open_blocks.pop(key, None)
                    _task_blocks.pop(key, None)


def _refused_count(client: Client) -> int:
    """Return the number of dropped messages, except by the setting `overflow`."""
    return sum(count for reason, count in client.ledger().dropped.items() if reason != "overflow")


@lru_cache(1)
def _hook_task_ends() -> None:
    """Call _end_spark_task at the end of each Spark task of this process.

    The call is made after the task's function has returned and all its results are written, but before the
    task is reported as successful, so an error fails this task. It is not made after another error.

    PySpark has no listener for this. The last step in the block with the task's errors (`invoke_udf` in
    pyspark/worker.py) resets the TaskContext, so this function wraps the reset.
    """
    from pyspark import TaskContext

    set_context = vars(TaskContext)["_setTaskContext"].__func__

    def set_context_and_check(cls: type[TaskContext], context: TaskContext | None) -> None:
        set_context(cls, context)
        if context is None:
            _end_spark_task()

    TaskContext._setTaskContext = classmethod(set_context_and_check)  # type: ignore[assignment, method-assign]


def _end_spark_task() -> None:
    for block in list(_open_blocks.values()):
        block.record_unflushed()
        block.invalidate()
    _open_blocks.clear()
    _task_blocks.clear()
    _raise_unreported()


def _raise_unreported() -> None:
    if _unreported_failures:
        texts = "; ".join(_unreported_failures)
        _unreported_failures.clear()
        raise UnflushedMessagesError(texts)


@atexit.register
def _report_at_exit() -> None:
    """Print the failures that were not raised before the process exits."""
    for block in list(_open_blocks.values()):
        block.record_unflushed()
    for text in set(_unreported_failures):
        print(f"tuplewire: {text}", file=sys.stderr)


def _discard(key: _Key) -> None:
    if (client := _clients.pop(key, None)) is not None:
        client.close(timeout=0)
