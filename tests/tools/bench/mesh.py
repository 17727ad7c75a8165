"""Measure workers that are all connected to each other: idle, or under a load that grows with their number.

Idle: the time to start, memory, CPU time, and the time of a new assignment.
Under load: the workers' CPU time per message, to predict more cores. One program per worker sends lists of
1,000 messages of 100 bytes to all tasks in turn, and one program per worker receives from the worker's tasks.
With N workers, all messages except one in N cross two workers.

Examples: python tests/tools/bench/mesh.py idle --mesh 1:100 --mesh 20:10000
          python tests/tools/bench/mesh.py cores --workers 1 2 4
Exit status: always 0.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from agent import cpu_seconds, parser_of
from report import progress
from workload import TOPOLOGY

from tuplewire.client import Client
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.values.batch import TaskMessageBatch

MESHES = ("1:100", "1:10000", "10:10000", "20:10000", "40:10000")
"""Number of workers, and total number of tasks."""
TASKS = 32
_STARTS = 5
_SETTLE_SECONDS = 5.0
"""Time before the measurement, for a worker's work after startup."""
_UPDATES = 5
_LIST, _BYTES = 1_000, 100
_ROOM = ("--receive-queue-messages=1000000", "--receive-queue-bytes=268435456", "--drain-seconds=1")


class Mesh:
    """Workers with an equal share of the tasks each."""

    def __init__(self, workers: WorkerProcesses, count: int, tasks: int) -> None:
        self.tasks = {index: range(index, tasks, count) for index in range(count)}
        self.workers = workers
        self.addresses = [each.address for each in workers.endpoints]
        self.processes = [each.process_id for each in workers.endpoints]
        workers.assign(self.tasks, timeout=120)

    def cpu_seconds(self) -> float:
        """Return the processor time of all workers so far."""
        return sum(map(cpu_seconds, self.processes))


@contextmanager
def mesh(count: int, tasks: int, *flags: str) -> Iterator[Mesh]:
    """Run `count` workers during the block."""
    with WorkerProcesses(count, TOPOLOGY, flags=flags) as workers:
        yield Mesh(workers, count, tasks)


def start_seconds() -> float:
    """Return a worker's time from the start of its process to its addresses; the median."""
    found = []
    for number in range(_STARTS):
        progress(f"starting a worker, {number + 1} of {_STARTS}")
        began = time.monotonic()
        with WorkerProcesses(1, TOPOLOGY):
            found.append(time.monotonic() - began)
    return statistics.median(found)


def at_rest(count: int, tasks: int, seconds: float) -> str:
    """Measure a mesh of `count` workers for `seconds` seconds; return its row of the table."""
    progress(f"{count} workers with {tasks:,} tasks")
    with mesh(count, tasks) as idle:
        updates = []
        for extra in range(_UPDATES):
            began = time.monotonic()
            idle.workers.assign({**idle.tasks, 0: [*idle.tasks[0], tasks + extra]})
            updates.append(time.monotonic() - began)
        time.sleep(_SETTLE_SECONDS)
        before, began = idle.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        used = (idle.cpu_seconds() - before) / (time.monotonic() - began)
        memory = sum(map(_resident_bytes, idle.processes)) / count / 2**20
    update = statistics.median(updates)
    return f"| {count} | {tasks:,} | {memory:.0f} | {100 * used / count:.2f} | {update:.2f} s |"


def _resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


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


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


class Cost(NamedTuple):
    """The rate of all programs, and the CPU time per message: of the workers, and of all processes."""

    rate: float
    worker_microseconds: float
    all_microseconds: float


def spread(count: int, messages: int) -> Cost:
    """Send about `messages` messages over `count` workers, from a program at each of them."""
    lists = messages // (_LIST * TASKS * count) * TASKS  # of each program, as many to each task
    messages = count * lists * _LIST
    progress(f"{count} workers, {messages:,} messages")
    start = multiprocessing.get_context("spawn").Process
    with mesh(count, TASKS, *_ROOM) as busy:
        programs = [
            each
            for index, address in enumerate(busy.addresses)
            for tasks in (busy.tasks[index],)
            for each in (
                start(target=_send, args=(address, lists)),
                start(target=_take, args=(address, tasks, messages * len(tasks) // TASKS)),
            )
        ]
        before, others, began = busy.cpu_seconds(), _children_seconds(), time.monotonic()
        for program in programs:
            program.start()
        for program in programs:
            program.join()
        seconds, used = time.monotonic() - began, busy.cpu_seconds() - before
        others = _children_seconds() - others
    return Cost(messages / seconds, 1e6 * used / messages, 1e6 * (used + others) / messages)


def main() -> None:
    """Run the measurements of the command line."""
    parser = parser_of(__doc__)
    kinds = parser.add_subparsers(required=True, dest="kind")
    idle, cores = kinds.add_parser("idle"), kinds.add_parser("cores")
    idle.add_argument("--mesh", action="append", metavar="W:T", help="W workers with T tasks")
    idle.add_argument("--seconds", type=float, default=20.0, help="how long each is measured (default: 20)")
    cores.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="how many workers")
    cores.add_argument(
        "--millions", type=int, default=16, help="messages of all programs together (default: 16)"
    )
    given = parser.parse_args()
    if given.kind == "idle":
        print(f"up, with its addresses, after {start_seconds():.2f} s")
        sizes = [map(int, each.split(":")) for each in given.mesh or MESHES]
        rows = [at_rest(count, tasks, given.seconds) for count, tasks in sizes]
        header = "| workers | tasks | MiB each | % of a core each | update applied everywhere |"
    else:
        costs = {count: spread(count, given.millions * 1_000_000) for count in given.workers}
        rows = [
            f"| {count} | {cost.rate:,.0f} | {cost.worker_microseconds:.2f} | {cost.all_microseconds:.2f} |"
            for count, cost in costs.items()
        ]
        header = "| workers | messages/s | workers' CPU, us a message | CPU of all |"
    print(f"\n{header}\n|{'---|' * (header.count('|') - 1)}", *rows, sep="\n")
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} over the last 5 minutes")


if __name__ == "__main__":
    main()
