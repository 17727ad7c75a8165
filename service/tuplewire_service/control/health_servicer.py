"""The standard health service of a worker: "" is readiness, "liveness" checks that the event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from tuplewire.wire import health_pb2, health_pb2_grpc
from tuplewire_service.messaging.grpc.grpc_transport import Call
from tuplewire_service.worker.worker import Worker, WorkerState

Request = health_pb2.HealthCheckRequest
Response = health_pb2.HealthCheckResponse

READINESS = ""
LIVENESS = "liveness"
_MAX_WATCHERS = 1000
"""Limit, because watching requires no token."""


# ruff: noqa: N802 - methods have the wire's names
class HealthServicer(health_pb2_grpc.HealthServicer):
    """Serves grpc.health.v1.Health for one worker. Call only from the event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._watchers: dict[asyncio.Task[Any], asyncio.Event] = {}
        """The calls of Watch, with the events that wake them."""
        self._is_draining = False
        worker.on_state_change = self._notify_watchers

    async def end(self, timeout: float) -> None:
        """Report not ready, and wait until all watchers' streams are closed, at most `timeout` seconds."""
        self._is_draining = True
        self._notify_watchers()
        # An idle stream would delay the server's stop, or fail.
        if self._watchers:
            await asyncio.wait(self._watchers, timeout=timeout)

    async def Check(self, request: Request, context: Call) -> Response:
        status = self._status(request.service)
        if status == Response.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no service {request.service!r}; known are {READINESS!r} (readiness) and {LIVENESS!r}",
            )
        return Response(status=status)

    async def Watch(self, request: Request, context: Call) -> AsyncIterator[Response]:
        if len(self._watchers) >= _MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{_MAX_WATCHERS} clients already watch the health of this worker; call Check instead",
            )
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of the loop runs in a task
        changed = self._watchers[task] = asyncio.Event()
        task.add_done_callback(self._watchers.pop)  # the task ends after the status is sent
        last = None
        while True:
            changed.clear()
            # Read both now: a drain that starts during the write is reported in the next round.
            ending, status = self._is_draining, self._status(request.service)
            if status != last:
                last = status
                yield Response(status=status)
            if ending:
                return
            await changed.wait()

    def _status(self, service: str) -> Response.ServingStatus:
        if service == LIVENESS:
            return Response.SERVING
        if service != READINESS:
            return Response.SERVICE_UNKNOWN
        ready = self._worker.state is WorkerState.READY and not self._is_draining
        return Response.SERVING if ready else Response.NOT_SERVING

    def _notify_watchers(self) -> None:
        for changed in self._watchers.values():
            changed.set()
