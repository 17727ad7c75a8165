"""A thousand senders connected to one worker at the same time, all served by one event loop."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from helpers.streams import Sequences, numbered_group
from helpers.topology import TOPOLOGY, one_worker, settled

from tuplewire import TaskMessageBatch
from tuplewire.aio import Client
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually

SENDERS = 1000
TASKS = range(10)
FIRST_SOURCE = 1000
BATCH = 20
BATCHES = 5
SPARE_FILES = 200
MORE_THREADS = 4
"""gRPC's own threads. Their number depends on the load, not on the connections."""


@pytest.fixture(autouse=True)
def _enough_files() -> Iterator[None]:
    """Raise this process's limit of open files to fit one connection per sender."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = SENDERS + SPARE_FILES
    assert hard >= needed, f"this test needs {needed} open files, and the hard limit is {hard}: raise it"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _threads(worker: Endpoint) -> int:
    return len(list(Path(f"/proc/{worker.process_id}/task").iterdir()))


@pytest.mark.slow
def test_a_thousand_senders_are_served(tmp_path: Path) -> None:
    """All messages arrive once, in order, the ledgers balance, and the number of threads does not grow."""
    with one_worker("w", directory=tmp_path, tasks=TASKS) as worker:
        asyncio.run(_exchange(worker))


async def _exchange(worker: Endpoint) -> None:
    clients = {
        source: Client(worker.address, topology=TOPOLOGY, source=source)
        for source in range(FIRST_SOURCE, FIRST_SOURCE + SENDERS)
    }
    before = _threads(worker)
    async with asyncio.timeout(90):
        for client in clients.values():
            client.try_send([])  # connects
        for client in clients.values():
            sender = client._sender
            assert sender is not None
            await asyncio.to_thread(eventually, lambda sender=sender: sender.connected)
        seen = asyncio.create_task(_consume(worker))
        await asyncio.gather(*(_send(source, client) for source, client in clients.items()))
        assert _threads(worker) <= before + MORE_THREADS
        assert all(client._sender and client._sender.counts.connections == 1 for client in clients.values())
        sequences = await seen
        assert sequences.problems == []
        assert sequences.next == {(source, _task(source)): BATCH * BATCHES for source in clients}
        await asyncio.gather(*(client.close() for client in clients.values()))
    for client in clients.values():
        assert client.ledger().acknowledged == BATCH * BATCHES
        assert client.ledger().balanced


def _task(source: int) -> int:
    return TASKS[source % len(TASKS)]


async def _send(source: int, client: Client) -> None:
    for number in range(BATCHES):
        group = numbered_group(_task(source), source, number * BATCH, BATCH)
        await client.send(TaskMessageBatch.from_groups([group]))
    await client.flush()


async def _consume(worker: Endpoint) -> Sequences:
    sequences = Sequences()
    received = 0
    total = SENDERS * BATCH * BATCHES
    async with Client(worker.address, topology=TOPOLOGY) as client, client.recv(TASKS) as batches:
        async for batch in batches:
            for group in batch.groups:
                sequences.take(group)
            received += len(batch)
            if received >= total:
                batches.acknowledge()
                # Wait here: in a busy process, acknowledgements may take longer than close() waits.
                all_settled = partial(settled, worker, accepted=total, acknowledged=total)
                await asyncio.to_thread(eventually, all_settled, 40, "all settled")
                return sequences
    raise AssertionError("the subscription closed")
