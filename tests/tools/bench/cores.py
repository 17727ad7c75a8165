"""Measure how the workers' CPU time per message grows with the number of workers, to predict more cores.

One program per worker sends lists of 1,000 messages of 100 bytes to all tasks in turn, and one program per
worker receives from the worker's tasks. With N workers, all messages except one in N cross two workers.

Example: python tests/tools/bench/cores.py --workers 1 2 4
Exit status: always 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time

from report import progress
from workload import TOPOLOGY, cpu_seconds

from tuplewire.client import Client
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.values.batch import TaskMessageBatch

TASKS = 32
_LIST, _BYTES = 1_000, 100
_ROOM = ("--receive-queue-messages=1000000", "--receive-queue-bytes=268435456", "--drain-seconds=1")


def _send(address: str, lists: int) -> None:
    payloads = [bytes(_BYTES)] * _LIST
    with Client(address, topology=TOPOLOGY) as client:
        for number in range(lists):
            client.send(TaskMessageBatch.from_columns(number % TASKS, payloads))


def _take(address: str, tasks: range, messages: int) -> None:
    with Client(address, topology=TOPOLOGY) as client, client.recv(tasks, timeout=60) as batches:
        got = 0
        while got < messages:
            got += len(next(batches))
        batches.acknowledge()


def spread(count: int, lists: int) -> str:
    """Send `lists` lists from each of `count` programs, and return the row of the table.

    lists: a multiple of the number of tasks.
    """
    progress(f"{count} workers, {count * lists * _LIST:,} messages")
    context = multiprocessing.get_context("spawn")
    with WorkerProcesses(count, TOPOLOGY, flags=_ROOM) as workers:
        tasks = {index: range(index, TASKS, count) for index in range(count)}
        workers.assign(tasks)
        addresses = [each.address for each in workers.endpoints]
        messages = count * lists * _LIST
        to_each = [messages * len(tasks[index]) // TASKS for index in range(count)]
        programs = [
            *(context.Process(target=_send, args=(address, lists)) for address in addresses),
            *(
                context.Process(target=_take, args=(address, tasks[index], to_each[index]))
                for index, address in enumerate(addresses)
            ),
        ]
        processes = [each.process_id for each in workers.endpoints]
        before, all_before, began = sum(map(cpu_seconds, processes)), os.times(), time.monotonic()
        for program in programs:
            program.start()
        for program in programs:
            program.join()
        seconds, used = time.monotonic() - began, sum(map(cpu_seconds, processes)) - before
        children = os.times()
        others = children.children_user + children.children_system
        others -= all_before.children_user + all_before.children_system
    costs = (1e6 * used / messages, 1e6 * (used + others) / messages)
    return f"| {count} | {messages / seconds:,.0f} | {costs[0]:.2f} | {costs[1]:.2f} |"


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="how many workers")
    parser.add_argument(
        "--millions", type=int, default=16, help="messages of all programs together (default: 16)"
    )
    given = parser.parse_args()
    rows = [
        spread(count, given.millions * 1_000_000 // (count * _LIST * TASKS) * TASKS)
        for count in given.workers
    ]
    print("\n| workers | messages/s | workers' CPU, us a message | CPU of all |")
    print("|---|---|---|---|", *rows, sep="\n")
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} over the last 5 minutes")


if __name__ == "__main__":
    main()
