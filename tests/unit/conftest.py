"""A router of one worker, without a server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from helpers.one_router import ASSIGNMENT

from tuplewire.connection.loop import messaging_loop
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.worker_settings import WorkerSettings


@pytest.fixture
def run_coroutine() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run the test on the messaging loop, as a worker's router does: its connections live there."""
    return messaging_loop().run


@pytest.fixture
def router(
    request: pytest.FixtureRequest, run_coroutine: Callable[[Coroutine[Any, Any, Router]], Router]
) -> Iterator[Router]:
    """Return the router of a worker that has task 0; another one has task 1."""
    context = LocalContext()

    async def main() -> Router:
        settings = WorkerSettings(worker_id="here", topology="t")
        router = Router(settings, 1, context, lambda: False, lambda *_: None)
        router.update(getattr(request, "param", ASSIGNMENT))
        return router

    router = run_coroutine(main())
    yield router
    router.connections.abort()
    context.term()
