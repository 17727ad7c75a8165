"""A router of one worker, without a server: task 0 is here, task 1 at another worker."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tuplewire.connection.loop import messaging_loop
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.worker_settings import WorkerSettings

HERE = AssignedWorker("here", "127.0.0.1:1", (0,))


THERE = AssignedWorker("there", "127.0.0.1:2", (1,))


ASSIGNMENT = Assignment(1, "t", (HERE, THERE))


class Program:
    """A program that sends."""

    source, sender_id, worker_number, wants_releases = "client", "c", 0, False

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Take no note."""


class Worker(Program):
    """Another worker that forwards."""

    source, sender_id, worker_number = "w", "w/1.1", 9


class Counting(Program):
    """The same, which counts what is released."""

    released = 0

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        """Count the messages."""
        del task, size_bytes
        self.released += messages


def with_router(
    act: Callable[[Router], Coroutine[Any, Any, None] | None], assignment: Assignment = ASSIGNMENT
) -> None:
    """Run something with the router of a worker that has task 0; another one has task 1.

    It runs on the messaging loop, as a worker's router does: its connections live there.
    """
    loop, context = messaging_loop(), LocalContext()

    async def main() -> Router:
        router = Router(WorkerSettings(worker_id="here", topology="t"), 1, context, draining=lambda: False)
        router.update(assignment)
        return router

    async def acting() -> None:
        if (acts := act(router)) is not None:
            await acts

    router = loop.run(main())
    try:
        loop.run(acting())
    finally:
        router.connections.abort()
        context.term()
