"""A thousand senders connected to one worker at the same time, all served by one event loop."""

from __future__ import annotations

import asyncio
import resource
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from helpers.topology import TOPOLOGY, gather, numbered, one_worker, settled

from tuplewire.aio import Client
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.testing import eventually

SENDERS = 1000
TASKS = range(10)
MESSAGES, BATCH = 40, 20
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


def threads_of(worker: Endpoint) -> int:
    """Return the number of threads of a worker."""
    return len(list(Path(f"/proc/{worker.process_id}/task").iterdir()))


async def send(source: int, client: Client) -> None:
    """Send numbered messages in batches."""
    for first in range(0, MESSAGES, BATCH):
        await client.send(numbered(TASKS[source % len(TASKS)], range(first, first + BATCH)))
    await client.flush()


@pytest.mark.slow
async def test_a_thousand_senders_are_served(tmp_path: Path) -> None:
    """All messages arrive once, in order, the ledgers balance, and the number of threads does not grow."""
    total = SENDERS * MESSAGES
    with one_worker("w", directory=tmp_path, tasks=TASKS) as worker:
        client_of = partial(Client, worker.address, topology=TOPOLOGY)
        clients = [client_of(source=source) for source in range(SENDERS)]
        before = threads_of(worker)
        async with asyncio.timeout(90), client_of() as consumer, consumer.recv(TASKS) as batches:
            for client in clients:
                client.try_send([])  # connects
            for client in clients:
                await asyncio.to_thread(eventually, lambda client=client: client._sender.connected)
            receiving = asyncio.create_task(gather(batches, total))
            await asyncio.gather(*map(send, range(SENDERS), clients))
            assert threads_of(worker) <= before + MORE_THREADS
            assert all(each._sender and each._sender.counts.connections == 1 for each in clients)
            received: defaultdict[int | None, list[int]] = defaultdict(list)
            for source, payload in await receiving:
                received[source].append(int(payload))
            # Wait here: in a busy process, acknowledgements may take longer than close() waits.
            all_settled = partial(settled, worker, accepted=total, acknowledged=total)
            await asyncio.to_thread(eventually, all_settled, 40, "all settled")
            await asyncio.gather(*(client.close() for client in clients))
        assert received == {source: list(range(MESSAGES)) for source in range(SENDERS)}
        for client in clients:
            assert client.ledger().acknowledged == MESSAGES
            assert client.ledger().balanced
