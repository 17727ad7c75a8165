"""Fixtures: a router of one worker, without a server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from helpers.queues import ASSIGNMENT

from tuplewire.connection.loop import messaging_thread
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.worker_settings import WorkerSettings


@pytest.fixture
def run_coroutine() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run the test on the messaging loop, because the router's connections belong to it."""
    return messaging_thread().run


@pytest.fixture
def router(
    request: pytest.FixtureRequest, run_coroutine: Callable[[Coroutine[Any, Any, Router]], Router]
) -> Iterator[Router]:
    """Return the router of a worker that owns task 0; another worker owns task 1."""
    context = LocalContext()

    async def main() -> Router:
        settings = WorkerSettings(worker_id="here", topology="t")
        router = Router(settings, 1, context, lambda: False, lambda *_: None)
        router.update_assignment(getattr(request, "param", ASSIGNMENT))
        return router

    router = run_coroutine(main())
    yield router
    router.connections.abort()
    context.term()
