"""Who takes part in a chaos run: three workers, four producers, three consumers, the ways between them."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.settings.config import AckMode

WORKERS = ("worker-0", "worker-1", "worker-2")
TASKS = (10, 11, 12, 13, 14, 15)


@dataclass(frozen=True)
class ProducerPlan:
    """A producer, and how it reaches its worker.

    proxied: over a way that can be cut; if not, over the worker's Unix socket. control: over a way on which
    control messages can be lost.
    """

    name: str
    source: int
    mode: AckMode
    worker: str
    proxied: bool = True
    control: bool = False


@dataclass(frozen=True)
class ConsumerPlan:
    """A consumer of some tasks, and how it reaches every worker; see ProducerPlan."""

    name: str
    tasks: tuple[int, ...]
    proxied: bool = True
    control: bool = False


PRODUCERS = (
    ProducerPlan("producer-0", 1, AckMode.QUEUED, "worker-0", control=True),
    ProducerPlan("producer-1", 2, AckMode.PROCESSED, "worker-1"),
    ProducerPlan("producer-2", 3, AckMode.QUEUED, "worker-2", proxied=False),
    ProducerPlan("producer-3", 4, AckMode.PROCESSED, "worker-0", control=True),
)
CONSUMERS = (
    ConsumerPlan("consumer-0", TASKS[:2]),
    ConsumerPlan("consumer-1", TASKS[2:4], control=True),
    ConsumerPlan("consumer-2", TASKS[4:], proxied=False),
)


def way(near: str, far: str) -> str:
    """Return the name of the way from one process to another."""
    return f"{near} -> {far}"


def ways() -> list[str]:
    """Return every way that has a fault proxy."""
    return [
        *(way(near, far) for near in WORKERS for far in WORKERS if near != far),
        *(way(each.name, each.worker) for each in PRODUCERS if each.proxied),
        *(way(each.name, worker) for each in CONSUMERS if each.proxied for worker in WORKERS),
    ]
