"""A second process for a test, which answers questions over a pipe, and threads."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Self

_ANSWER_SECONDS = 120.0


class Program:
    """A forked process that answers questions. It exits at the end of the block."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._process, self._pipe = forked(target, *arguments)

    @property
    def process_id(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def ask(self, question: str, timeout: float = _ANSWER_SECONDS) -> Any:
        """Return the answer. Raises RuntimeError, with the process's error, if the process has failed."""
        try:
            self._pipe.send(question)
            if not self._pipe.poll(timeout):
                raise RuntimeError(f"{self._process.name} has not answered {question!r} for {timeout} s")
            error, answer = self._pipe.recv()
        except (EOFError, BrokenPipeError) as gone:
            raise RuntimeError(f"{self._process.name} exited; its messages are above") from gone
        if error is not None:
            raise RuntimeError(f"{self._process.name} has failed") from error
        return answer

    def await_end(self) -> None:
        """Wait until the process and its open files are closed. Raises AssertionError after 20 seconds."""
        self._process.join(20)
        assert self._process.exitcode is not None, f"{self._process.name} has not ended"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(20)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def forked(target: Callable[..., None], *arguments: Any) -> tuple[ForkServerProcess, Connection]:
    """Call `target(pipe, *arguments)` in a new process with this environment; return it, and our end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tuplewire.aio", "tuplewire.client", "tuplewire.team.team"])
    pipe, child = context.Pipe()
    process = context.Process(
        target=_run, args=(child, dict(os.environ), target, arguments), name=target.__name__
    )
    process.start()
    child.close()
    return process, pipe


def _run(
    pipe: Connection, environment: Mapping[str, str], target: Callable[..., None], arguments: Sequence[Any]
) -> None:
    # The server that forks has the environment of the test that started it.
    os.environ.clear()
    os.environ.update(environment)
    target(pipe, *arguments)


def serve(
    pipe: Connection, answers: Mapping[str, Callable[[], Any]], errors: Sequence[BaseException]
) -> None:
    """Answer until the other end is closed. Each answer includes the first error of a thread, if any."""
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        answer = answers[question]()
        pipe.send((errors[0] if errors else None, answer))


@contextmanager
def in_threads(*calls: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Make each call in a thread of its own during the block, and wait for all; raise their first error."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        yield futures
        for each in futures:
            each.result(_ANSWER_SECONDS)


class Threads:
    """Threads that run until `stop` is set. Their exceptions are recorded."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.errors.append(error)
                raise

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()
