"""Functions for processes that a test spawns. Such a process imports them by name."""

from __future__ import annotations

import sys

from helpers.topology import TOPOLOGY, collect, numbers
from tuplewire import Client


def send_and_receive(address: str, task: int) -> None:
    """Send a 1 to a task that has a 0 queued, and receive both; exit with code 3 if the result differs."""
    client = Client(address, topology=TOPOLOGY)
    client.send(task, b"1")
    client.flush(10)
    got = numbers(collect(client.recv([task], timeout=10), 2))
    client.close()
    sys.exit(0 if got == [0, 1] else 3)
