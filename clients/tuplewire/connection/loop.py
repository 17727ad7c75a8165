"""The event-loop thread of a process, and its suspension at a fork.

gRPC's asyncio stack does not survive a fork: a child that inherits it hangs (grpcio 1.85, measured with
GRPC_ENABLE_FORK_SUPPORT unset, 0 and 1). So all connections and gRPC are closed before a fork; then the
parent's connections resume, and the child starts without any. Used by clients, connections and the worker.
Owns the loop and its thread. Thread-safe. Design: docs/design/forks-and-interrupts.md.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
import logging
import math
import os
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from tuplewire.connection.green_threads import refuse_green_threads
from tuplewire.errors import ClosedError, WaitTimeoutError
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_Result = TypeVar("_Result")
_WAKE_SECONDS = 0.25
_SUSPEND_SECONDS = 5.0
BLOCKING_CALL = "a blocking call was made on the messaging loop: make it in another thread, or await it"
_GRPC_THREADS = ("event_engine", "grpc_", "lifeguard")
"""The prefixes of the names of gRPC's threads (grpcio 1.74 to 1.85)."""


class Suspendable(Protocol):
    """A connection that can be closed for a fork and resumed after it; called on the loop."""

    async def suspend(self) -> None:
        """Release the objects of gRPC and ZeroMQ, which do not survive a fork."""

    def resume(self) -> None:
        """Start to connect, at first or after a fork, unless it was closed."""


class _Selector(selectors.DefaultSelector):
    def timed_select(self, on_wait: Callable[[float, float], None], timeout: float | None = None) -> Any:
        """Do the same as select(), and report the start and the end of a wait."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        started_at = time.monotonic()
        ready = super().select(timeout)
        on_wait(started_at, time.monotonic())
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore gRPC's events for a closed loop: another asyncio loop here may close during a call."""
        # gRPC delivers the events of all loops of a process on one of them.
        error = repr(context.get("exception"))
        if "PollerCompletionQueue" in context["message"] and "loop is closed" in error:
            logger.debug("grpc.loop_closed", extra={"reason": context["message"]})
        else:
            super().call_exception_handler(context)


class _Outcome(Generic[_Result]):
    """The result or the exception of another thread; the wait uses a bare lock.

    An interrupt can leave the lock of a Future or a Condition acquired; the other thread would then hang.
    """

    def __init__(self) -> None:
        self._done_lock = threading.Lock()
        self._done_lock.acquire()
        self._result: Callable[[], _Result]

    def set_result(self, result: Callable[[], _Result]) -> None:
        """Set the function that returns or raises the outcome; once, from any thread."""
        self._result = result
        self._done_lock.release()

    def wait(self, timeout: float | None = None) -> _Result:
        """Wait for the outcome; raise WaitTimeoutError after `timeout` seconds."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        # Wake periodically: a signal just before the wait starts does not end it.
        while not self._done_lock.acquire(timeout=max(0.0, min(_WAKE_SECONDS, until - time.monotonic()))):
            if time.monotonic() >= until:
                raise WaitTimeoutError(f"no result within {timeout:g} s")
        return self._result()


class EventLoopThread:
    """An asyncio loop in its own daemon thread."""

    def __init__(self) -> None:
        self._selector = _Selector()
        self.loop: asyncio.AbstractEventLoop = _Loop(self._selector)
        self.suspendables: WeakSet[Suspendable] = WeakSet()
        self.fork_blocking_servers = 0
        """The number of bound servers that cannot be suspended (blocks_fork)."""
        self._ended = self._suspended = False
        self._suspending: asyncio.Future[list[None]] | None = None
        self._thread = threading.Thread(target=self._main, name="tuplewire-loop", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ended:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - asyncio re-raises SystemExit, KeyboardInterrupt
                context = {"message": "a callback raised out of the event loop", "exception": error}
                with contextlib.suppress(BaseException):  # a logging handler may raise, too
                    self.loop.call_exception_handler(context)
        self.loop.close()

    def stop(self) -> None:
        """Stop the thread of an unused loop, and close the loop."""
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def set_wait_listener(self, listener: Callable[[float, float], None] | None) -> None:
        """Report start and end of each wait by the loop's clock; None: stop.

        The loop calls the listener after the wait, before the callbacks that are due. It must not raise.
        """
        vars(self._selector).pop("select", None)  # without a listener, select() has no extra cost
        if listener is not None:
            vars(self._selector)["select"] = partial(self._selector.timed_select, listener)

    @property
    def is_current_thread(self) -> bool:
        """True if the caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, _Result], timeout: float | None = None) -> _Result:
        """Run a coroutine on the loop; return its result, or raise WaitTimeoutError. Not on its thread."""
        outcome = _Outcome[_Result]()
        running = self.start(coroutine, lambda task: outcome.set_result(task.result))

        def cancel() -> None:
            for task in running:
                task.cancel()

        try:
            return outcome.wait(timeout)
        except TimeoutError:
            self.loop.call_soon_threadsafe(cancel)
            raise

    def start(
        self, coroutine: Coroutine[Any, Any, _Result], on_done: Callable[[asyncio.Task[_Result]], object]
    ) -> set[asyncio.Task[_Result]]:
        """Start a coroutine from another thread, and call `on_done` at its end. Return a set with it."""
        if self.is_current_thread:
            coroutine.close()
            raise RuntimeError(BLOCKING_CALL)
        running: set[asyncio.Task[_Result]] = set()

        def begin() -> None:
            task = self.loop.create_task(coroutine)
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(on_done)

        self.loop.call_soon_threadsafe(begin)
        return running

    def call(self, function: Callable[[], _Result], timeout: float | None = None) -> _Result:
        """Call a function on the loop and return its result; from any thread. timeout: see run."""
        if self.is_current_thread:
            return function()

        async def wrapped() -> _Result:
            return function()

        return self.run(wrapped(), timeout)

    def start_connection(self, connection: Suspendable) -> None:
        """Start a connection, from any thread; during a fork, start it after the fork."""
        if self.is_current_thread:
            self._start_connection(connection)
        else:  # without waiting: the caller may hold a lock that a logging handler on the loop needs
            self.loop.call_soon_threadsafe(self._start_connection, connection)

    def _start_connection(self, connection: Suspendable) -> None:
        if connection in self.suspendables:
            return  # the caller was interrupted, and starts it again
        self.suspendables.add(connection)
        if not self._suspended:
            connection.resume()

    async def suspend(self) -> None:
        """Close every connection for a fork."""
        self._suspended = True
        if self._suspending is None:
            self._suspending = asyncio.gather(*(each.suspend() for each in list(self.suspendables)))
        await asyncio.shield(self._suspending)

    async def resume(self) -> None:
        """Resume after a fork, also if suspend() is still running or was never called."""
        if self._suspending is not None:
            await asyncio.wait([self._suspending])
        if self._suspended:
            self._suspended, self._suspending = False, None
            for each in list(self.suspendables):
                each.resume()


async def run_in_thread(function: Callable[[], _Result]) -> _Result:
    """Await a blocking function in a new thread: a pool may be full of functions that wait."""
    outcome: Future[_Result] = Future()
    _blocking_calls.add(outcome)
    outcome.add_done_callback(_blocking_calls.discard)
    outcome.set_running_or_notify_cancel()  # a caller that stops waiting does not cancel it
    run = partial(_set_result, outcome, function)
    threading.Thread(target=run, name="tuplewire-blocking", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _set_result(outcome: Future[_Result], function: Callable[[], _Result]) -> None:
    try:
        outcome.set_result(function())
    except BaseException as error:  # noqa: BLE001 - for the caller that waits
        outcome.set_exception(error)


def run_uninterrupted(function: Callable[[], _Result]) -> _Result:
    """Return the result of a function that blocks in gRPC: Ctrl-C ends the wait, not the function.

    If KeyboardInterrupt is raised while a call starts, no thread polls the call, and gRPC waits for it
    indefinitely when the channel is closed. Python raises it in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    outcome, future = _Outcome[_Result](), Future[_Result]()
    future.add_done_callback(lambda done: outcome.set_result(done.result))
    _thread.start_new_thread(_set_result, (future, function))  # threading waits until it runs
    return outcome.wait()


def report_errors(task: asyncio.Task[None]) -> asyncio.Task[None]:
    """Report a background task's exception to its loop's exception handler; otherwise it would be lost."""
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"defect in {task.get_name()}", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)


_blocking_calls: set[Future[Any]] = set()  # of run_in_thread(): a child would inherit OpenSSL's locks
_lock = threading.Lock()
_current: EventLoopThread | None = None
_grpc_shut_down = False
"""True if gRPC was shut down for a fork: only then may the child use gRPC."""
_unusable_reason = ""
_interrupted = False
"""True if Ctrl-C arrived during the shutdown of gRPC. The main thread is interrupted after the fork."""


def messaging_thread() -> EventLoopThread:
    """Return the process's loop thread; start it at the first call.

    Raises ClosedError in a child that would hang, as it was forked while gRPC could not be shut down. Raises
    ConfigError if gevent or eventlet has replaced threads or select.
    """
    global _current
    if _unusable_reason:
        raise ClosedError(_unusable_reason)
    refuse_green_threads()
    if (current := _current) is not None:
        return current
    asyncio_log, thread = logging.getLogger("asyncio"), threading.get_ident()

    def is_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread

    # asyncio logs each new loop, and a logging handler that sends would create another one.
    asyncio_log.addFilter(is_other_thread)
    try:
        created = EventLoopThread()  # without the lock: an audit hook may call this function
    finally:
        asyncio_log.removeFilter(is_other_thread)
    with _lock:
        current = _current = _current or created
    if current is not created:
        created.stop()
    return current


def is_on_messaging_loop() -> bool:
    """Return True on the loop's thread, which must not block."""
    return _current is not None and threading.current_thread() is _current._thread


def _grpc_is_running() -> bool:
    """Return True if a thread of gRPC's core is alive; it exits milliseconds after the last gRPC object."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it exited after it was listed
            if (thread / "comm").read_text().startswith(_GRPC_THREADS):
                return True
    return False


def _before_fork() -> None:
    """Shut gRPC down. Ctrl-C does not stop this: Python ignores exceptions in fork hooks and forks anyway.

    1. The process has no loop: there is nothing to close.
    2. A server is bound, or the loop's own thread forks: gRPC continues, and the child cannot use gRPC.
    3. All connections are closed, and the threads of gRPC and TLS have exited: the child may connect.
    4. An error, or 5 seconds have passed: the child cannot use gRPC.
    """
    global _grpc_shut_down, _interrupted
    _grpc_shut_down = False
    current = _current
    # 1 and 2. The loop's thread cannot wait for its own loop.
    if current is None or current.fork_blocking_servers or current.is_current_thread:
        return
    deadline = time.monotonic() + _SUSPEND_SECONDS
    # 3. After Ctrl-C the steps are repeated: a child of a process with half-closed gRPC may crash.
    while not _grpc_shut_down and time.monotonic() < deadline:
        try:
            current.run(current.suspend(), _SUSPEND_SECONDS)
            gc.collect()  # gRPC's threads exit after its last object
            while (running := bool(_blocking_calls) or _grpc_is_running()) and time.monotonic() < deadline:
                time.sleep(0.001)
            _grpc_shut_down = not running
        except KeyboardInterrupt:
            _interrupted = True
        except Exception:
            logger.exception("fork.suspend_failed")
            return  # 4.


def _after_in_parent() -> None:
    global _grpc_shut_down, _interrupted
    # A later fork may skip the hook before it, as in uWSGI, and must not count as safe.
    _grpc_shut_down = False
    if _current is not None:  # also after an interrupt or an error in _before_fork()
        _current.submit(_current.resume())
        if _interrupted:
            _interrupted = False
            _current.submit(_interrupt_main())


async def _interrupt_main() -> None:
    await asyncio.sleep(0.01)  # the fork hook has returned by then
    _thread.interrupt_main()


def _after_in_child() -> None:
    global _current, _unusable_reason, _lock
    # 2 and 4 in _before_fork(), and a fork without that hook.
    if _current is not None and not _grpc_shut_down:
        _unusable_reason = (
            f"process {os.getpid()} was forked while a server was bound, or before gRPC could be "
            "shut down: start it with the multiprocessing method 'spawn' or 'forkserver', or "
            "connect after the fork (uWSGI: lazy-apps = true)"
        )
    _current = None
    _lock = threading.Lock()


# Registered twice: a signal handler that raises at the start of a hook skips the rest of that call.
for _ in range(2):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
