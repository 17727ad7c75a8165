"""Draws the pictures of the live page for the docs: `make pictures`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers import eventually
from helpers.browser import Browser, browser, web_viewer
from helpers.program import Threads
from helpers.words import slow_conf, slow_topology

from tuplewire import Client, TaskMessageBatch
from tuplewire.errors import BufferFullError, FlushTimeoutError
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire_topology.clusters.cluster import DistributedCluster

IMAGES = Path(__file__).parents[3] / "docs" / "images"
SLOW_TASK = 12
_WIDTH, _HEIGHT = 1100, 1000
_SEEN_SECONDS = 25
"""Minimum length of the time lines, in seconds."""


def take(tab: Browser, url: str, name: str, culprit: str) -> None:
    """Open a page, wait until it names the culprit and has time lines, and take its picture."""
    tab.resize(_WIDTH, _HEIGHT)
    tab.open(url)
    eventually(lambda: tab.value(f"by('blocking').innerText.includes({culprit!r})"), 60, "the culprit")
    eventually(lambda: tab.value(f"history.length >= {_SEEN_SECONDS}"), 120, "time lines")
    assert tab.complaints == []
    tab.picture(IMAGES / name)


def topology_with_a_slow_bolt(directory: Path) -> None:
    """Draw a topology with a slow bolt."""
    slow = directory / "slow"
    slow.touch()
    with DistributedCluster() as cluster, browser(directory / "profile") as tab:
        running = cluster.submit("words", slow_conf(slow), slow_topology())
        with web_viewer(running.addresses[0]) as link:
            take(tab, link, "live-page-topology.png", "bolt count is slow")
        slow.unlink()


def workers_with_a_slow_task(directory: Path) -> None:
    """Draw two workers, in the dark theme; the consumer of one of twenty tasks never acknowledges."""
    threads = Threads()
    with (
        WorkerProcesses(2, "default", flags=["--receive-queue-messages=1000"], drain_seconds=1) as workers,
        contextlib.ExitStack() as stack,
    ):
        workers.assign({0: range(10), 1: range(10, 20)})
        near, far = workers.endpoints
        sender = Client(near.address, client_id="orders", max_pending_task_messages=500)
        consumers = [
            Client(at.address, client_id=name)
            for at, name in ((near, "store-0"), (far, "store-1"), (far, "audit"))
        ]

        def read(client: Client, tasks: list[int]) -> None:
            while not threads.stop.is_set():
                with contextlib.suppress(TimeoutError), client.recv(tasks, timeout=1) as batches:
                    for _ in batches:
                        if threads.stop.is_set():
                            return

        def send() -> None:
            while not threads.stop.wait(0.01):
                for task in range(20):
                    with contextlib.suppress(BufferFullError):
                        sender.send(
                            TaskMessageBatch.from_columns([task] * 10, [bytes(100)] * 10), timeout=0.01
                        )

        asleep = stack.enter_context(consumers[2].recv([SLOW_TASK], timeout=30))
        threads.start(read, consumers[0], [*range(10)])
        threads.start(read, consumers[1], [each for each in range(10, 20) if each != SLOW_TASK])
        threads.start(send)
        next(asleep)
        try:
            with browser(directory / "another") as tab, web_viewer(near.address) as link:
                tab.dark()
                take(tab, link, "live-page.png", f"task {SLOW_TASK} at worker-1")
        finally:
            threads.end()
            with contextlib.suppress(FlushTimeoutError):
                sender.close(0.1)
            for consumer in consumers:
                consumer.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        topology_with_a_slow_bolt(Path(made))
        workers_with_a_slow_task(Path(made))
