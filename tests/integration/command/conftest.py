"""A fixture for commands that show which task blocks its senders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest
from helpers.program import Threads

from tuplewire import Client
from tuplewire.errors import BufferFullError, FlushTimeoutError

Blocked = Callable[[str, str, int], AbstractContextManager[None]]


@contextmanager
def _blocked(near: str, far: str, task: int) -> Iterator[None]:
    with (
        Client(near, client_id="sends") as sender,
        Client(far, client_id="sleeps") as consumer,
        consumer.recv([task], timeout=30) as batches,
    ):
        threads = Threads()

        def send() -> None:
            while not threads.stop.is_set():
                with suppress(BufferFullError):
                    sender.send(task, b"x", timeout=0.1)

        threads.start(send)
        try:
            next(batches)
            yield
        finally:
            threads.end()
            with suppress(FlushTimeoutError):
                sender.close(0.1)


@pytest.fixture(scope="module")
def blocked() -> Blocked:
    """Return a context in which a sender at `near` is blocked: the consumer at `far` never acknowledges."""
    return _blocked
