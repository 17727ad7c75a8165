"""Debug bundles: files with the state of a running worker process.

Used by servicers.py and process/ (main.py, worker_runtime.py). Owns no state of the worker; it reads. Call
only from the event loop. How-to: docs/how-to/debug.md. Guarantee: a bundle contains no secret. Settings name
files, but their content is not included.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import platform
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import google.protobuf
import grpc
from prometheus_client import CollectorRegistry, generate_latest

import tuplewire
from tuplewire.errors import ResourceLimitError
from tuplewire_service.config.config_sources import to_toml
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.control.log_output import LogOutput
from tuplewire_service.control.memory import resident_bytes
from tuplewire_service.worker.worker import Worker

_ASYNCIO_TASKS_PER_TURN = 200
"""Number of asyncio tasks to inspect before messages are processed again."""
_MAX_FRAMES = 30
CodeLocation = tuple[str, int, str]
"""A file, a line and a function."""


class DebugBundles:
    """The debug bundles of one process. Call only from the event loop, except the constructor."""

    def __init__(self, config: WorkerConfig, log: LogOutput, registry: CollectorRegistry) -> None:
        """Start without a bundle. `registry` is that of the admin port."""
        self.log = log
        self._registry = registry
        self._config = config
        self._lock = asyncio.Lock()

    async def files(self, worker: Worker) -> AsyncGenerator[tuple[str, str]]:
        """Yield the name and the text of each file. Raises ResourceLimitError during another bundle."""
        if self._lock.locked():
            raise ResourceLimitError("this worker is creating another debug bundle: retry in a few seconds")
        async with self._lock:
            yield "versions.json", _as_json(self._versions(worker))
            yield "settings.toml", to_toml(self._config) + "\n"
            yield "router.json", _as_json(_router_state(worker))
            yield "stacks.txt", "".join(_thread_stacks()) + await _asyncio_task_stacks()
            yield "log.txt", "".join(f"{line}\n" for line in list(self.log.recent_lines))
            metrics = await asyncio.to_thread(generate_latest, self._registry)
            yield "metrics.txt", metrics.decode()

    def _versions(self, worker: Worker) -> dict[str, Any]:
        return {
            "tuplewire": tuplewire.__version__,
            "python": sys.version,
            "grpc": grpc.__version__,
            "protobuf": google.protobuf.__version__,
            "platform": platform.platform(),
            "worker_id": worker.settings.worker_id,
            "topology": worker.settings.topology,
            "incarnation": worker.incarnation,
            "process_id": os.getpid(),
            "resident_bytes": resident_bytes(),
            "open_files": len(list(Path("/proc/self/fd").iterdir())),
            "threads": threading.active_count(),
            "garbage_collections": gc.get_stats(),
        }


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"


def _router_state(worker: Worker) -> dict[str, Any]:
    """Return the state of the router that a status does not contain."""
    router = worker.router
    return {
        "router": repr(router),
        "waits_for": worker.waits_for,
        "move_count": router.move_count,
        "blocked": [{"task": task, "worker": place} for task, place in router.connections.blocked_tasks()],
        "tasks_without_credit": sorted(worker.servers.tasks_without_credit()),
        "waiting": router.queues.queued_by_task(),
        "unreleased": [
            {"worker": peer.worker_id, "messages": sum(messages_by_entry.values())}
            for peer, _, messages_by_entry in router.connections.unreleased_by_peer()
        ],
    }


def _thread_stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, '?')} ({ident})\n"
        yield from traceback.format_stack(frame, _MAX_FRAMES)
        yield "\n"


async def _asyncio_task_stacks() -> str:
    """Return the places where asyncio tasks wait. Each place appears once, with its number of tasks."""
    names: defaultdict[tuple[CodeLocation, ...], list[str]] = defaultdict(list)
    for number, task in enumerate(asyncio.all_tasks(), 1):
        names[tuple(_await_chain(task.get_coro()))].append(task.get_name())
        if number % _ASYNCIO_TASKS_PER_TURN == 0:
            await asyncio.sleep(0)
    parts = []
    for places, found in sorted(names.items(), key=lambda item: len(item[1]), reverse=True):
        parts.append(f"{len(found)} asyncio tasks, such as {', '.join(found[:3])}\n")
        parts += [f'  File "{file}", line {line}, in {function}\n' for file, line, function in places]
        parts.append("\n")
    return "".join(parts)


def _await_chain(waiting: Any) -> Iterator[CodeLocation]:
    """Yield the place where a coroutine waits, then the place of the coroutine that it awaits, and so on."""
    for _ in range(_MAX_FRAMES):
        frame: FrameType | None = None
        # Coroutines, generators and asynchronous generators differ in the prefix of these attributes.
        for prefix in ("cr", "gi", "ag"):
            if hasattr(waiting, f"{prefix}_frame"):
                frame = getattr(waiting, f"{prefix}_frame")
                waiting = getattr(waiting, "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await")
                break
        if frame is None:
            return
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
