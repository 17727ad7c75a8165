"""The processes of a chaos run with workers: three workers, four producers, three consumers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuplewire.settings.config import AckMode

WORKERS = ("worker-0", "worker-1", "worker-2")
TASKS = (10, 11, 12, 13, 14, 15)


@dataclass(frozen=True)
class ProgramPlan:
    """A producer or a consumer. proxied: it can be cut. control: it can lose control messages."""

    name: str
    workers: tuple[str, ...]
    config: Mapping[str, Any]
    proxied: bool = True
    control: bool = False


def _producer(source: int, mode: AckMode, worker: str, **ways: bool) -> ProgramPlan:
    config = {"role": "producer", "source": source, "mode": mode, "worker": worker, "tasks": TASKS}
    return ProgramPlan(f"producer-{source - 1}", (worker,), config, **ways)


def _consumer(number: int, **ways: bool) -> ProgramPlan:
    config = {"role": "consumer", "tasks": TASKS[2 * number : 2 * number + 2]}
    return ProgramPlan(f"consumer-{number}", WORKERS, config, **ways)


PRODUCERS = (
    _producer(1, AckMode.QUEUED, "worker-0", control=True),
    _producer(2, AckMode.PROCESSED, "worker-1"),
    _producer(3, AckMode.QUEUED, "worker-2", proxied=False),
    _producer(4, AckMode.PROCESSED, "worker-0", control=True),
)
CONSUMERS = (_consumer(0), _consumer(1, control=True), _consumer(2, proxied=False))


def way(near: str, far: str) -> str:
    """Return the name of the connection from one process to another."""
    return f"{near} -> {far}"


def ways() -> list[str]:
    """Return every connection that has a fault proxy."""
    return [
        *(way(near, far) for near in WORKERS for far in WORKERS if near != far),
        *(
            way(each.name, worker)
            for each in (*PRODUCERS, *CONSUMERS)
            if each.proxied
            for worker in each.workers
        ),
    ]
