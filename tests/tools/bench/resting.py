"""Measure idle workers: the time to start, memory, CPU time, and the time of a new assignment.

Every worker of a mesh has a connection to each of the others.

Example: python tests/tools/bench/resting.py --mesh 1:100 --mesh 20:10000
Exit status: always 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from report import progress
from workload import TOPOLOGY, cpu_seconds

from tuplewire.processes.worker_processes import WorkerProcesses

MESHES = ("1:100", "1:10000", "10:10000", "20:10000", "40:10000")
"""Number of workers, and total number of tasks."""
_STARTS = 5
_SETTLE_SECONDS = 5.0
"""Time before the measurement, for a worker's work after startup."""
_UPDATES = 5


def start_seconds() -> float:
    """Return a worker's time from the start of its process to its addresses; the median."""
    found = []
    for number in range(_STARTS):
        progress(f"starting a worker, {number + 1} of {_STARTS}")
        began = time.monotonic()
        with WorkerProcesses(1, TOPOLOGY):
            found.append(time.monotonic() - began)
    return statistics.median(found)


def at_rest(count: int, task_count: int, seconds: float) -> str:
    """Measure a mesh of `count` workers for `seconds` seconds; return its row of the table."""
    progress(f"{count} workers with {task_count:,} tasks")
    with WorkerProcesses(count, TOPOLOGY) as workers:
        tasks = {index: range(index, task_count, count) for index in range(count)}
        workers.assign(tasks, timeout=120)
        updates = []
        for extra in range(_UPDATES):
            began = time.monotonic()
            workers.assign({**tasks, 0: [*tasks[0], task_count + extra]})
            updates.append(time.monotonic() - began)
        time.sleep(_SETTLE_SECONDS)
        processes = [each.process_id for each in workers.endpoints]
        before, began = sum(map(cpu_seconds, processes)), time.monotonic()
        time.sleep(seconds)
        used = (sum(map(cpu_seconds, processes)) - before) / (time.monotonic() - began)
        memory = sum(map(_resident_bytes, processes))
    update = statistics.median(updates)
    measured = f"{memory / count / 2**20:.0f} | {100 * used / count:.2f} | {update:.2f} s"
    return f"| {count} | {task_count:,} | {measured} |"


def _resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run the measurements of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mesh", action="append", metavar="W:T", help="W workers with T tasks")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is measured (default: 20)")
    given = parser.parse_args()
    print(f"up, with its addresses, after {start_seconds():.2f} s")
    sizes = [map(int, each.split(":")) for each in given.mesh or MESHES]
    rows = [at_rest(count, tasks, given.seconds) for count, tasks in sizes]
    print("\n| workers | tasks | MiB each | % of a core each | update in force everywhere |")
    print("|---|---|---|---|---|", *rows, sep="\n")
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} over the last 5 minutes")


if __name__ == "__main__":
    main()
