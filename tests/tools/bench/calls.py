"""Count the Python calls of a message that travels alone: producer, entry worker, owner worker, consumer.

A message is sent after the one before was received, at most RATE a second, so no batches form. The counts are
means of one part of the messages, after a warm-up: the part with the fewest calls. A machine that is too busy
for the rate has more acknowledgements and turns for each message. With --cpu, measure CPU times instead.

Example: python tests/tools/bench/calls.py --top 20
Exit status: always 0.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from agent import HERE, BenchError, parser_of
from workload import DESTINATION_TASK, MESSAGE_BYTES, TOPOLOGY

from tuplewire.client import Client
from tuplewire.processes.worker_processes import WorkerProcesses

RATE = 250
PATH = ("producer", "worker-0", "worker-1", "consumer")
"""The processes in the order of the path: worker-0 is the entry worker, and worker-1 the owner."""
_WARM_UP = 200
_PARTS = 5
_HEAD = "| calls for each message | Tuplewire | asyncio | others | turns |\n|---|---|---|---|---|"


class LonePath:
    """The four running processes, for a `with` block. `ids` has their process ids by name."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._exits = ExitStack()
        workers = self._exits.enter_context(WorkerProcesses(2, TOPOLOGY, environment=environment))
        workers.assign({1: [DESTINATION_TASK]})
        entry, owner = workers.endpoints
        consumer = self._start("consumer", owner.address, environment)
        producer = self._start("producer", entry.address, environment)
        pids = (producer.pid, entry.process_id, owner.process_id, consumer.pid)
        self.ids = dict(zip(PATH, pids, strict=True))
        assert producer.stdin is not None
        assert consumer.stdout is not None
        self._sent, self._received = producer.stdin, consumer.stdout

    def _start(self, role: str, address: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        words = (sys.executable, str(HERE / "calls.py"), f"--role={role}", address)
        pipe, variables = subprocess.PIPE, {**os.environ, **environment}
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, env=variables, bufsize=0)
        return self._exits.enter_context(process)  # closes its pipes, and waits for it

    def __enter__(self) -> Self:
        self.send(_WARM_UP)
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def send(self, messages: int) -> None:
        """Send messages one at a time, each after the one before was received."""
        due = time.monotonic()
        for _ in range(messages):
            due = max(due + 1 / RATE, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            self._sent.write(b".")
            if not self._received.read(1):
                raise BenchError("the consumer exited, see its messages above")


def play(role: str, address: str) -> None:
    """Send a message for each byte of the input, or write a byte for each message that arrives."""
    with Client(address, topology=TOPOLOGY) as client:
        if role == "producer":
            while os.read(0, 1):
                client.send(DESTINATION_TASK, bytes(MESSAGE_BYTES))
            client.send(DESTINATION_TASK, b"")  # the end
            return
        with client.recv(DESTINATION_TASK) as batches:
            while next(batches).payloads[0]:
                os.write(1, b".")
            batches.acknowledge()


def count(messages: int) -> dict[str, Counter[tuple[str, str, int]]]:
    """Return the calls of each process for each message, by file, function and line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "switch")
        file.write_bytes(b"\0")
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 1) as switch:
            hook = {"BENCH_CALLS": folder, "PYTHONPATH": str(HERE / "counting")}
            with LonePath(hook) as path:
                for part in range(_PARTS):
                    switch[0] = part + 1
                    path.send(messages // _PARTS)
                switch[0] = 0
        found = {}
        for name in PATH:
            parts: list[Counter[tuple[str, str, int]]] = [Counter() for _ in range(_PARTS)]
            for part, *function, number in json.loads(Path(folder, f"{name}.json").read_text()):
                parts[part - 1][tuple(function)] += number / (messages // _PARTS)
            found[name] = min(parts, key=lambda calls: sum(calls.values()))
        return found


def summed(calls: Counter[tuple[str, str, int]]) -> dict[str, float]:
    """Return the calls of one process by package, and the turns of its event loop."""
    of = Counter({"tuplewire": 0.0, "asyncio": 0.0, "others": 0.0, "turns": 0.0})
    for (file, function, _), number in calls.items():
        of["tuplewire" if "/tuplewire" in file else "asyncio" if "/asyncio/" in file else "others"] += number
        of["turns"] += number if function == "BaseEventLoop._run_once" else 0
    return dict(of)


def cpu(messages: int) -> dict[str, float]:
    """Return the CPU time of each process for each message, user and system, in microseconds."""
    with LonePath({}) as path:
        before = {name: _cpu_ns(process_id) for name, process_id in path.ids.items()}
        path.send(messages)
        return {name: (_cpu_ns(path.ids[name]) - ns) / messages / 1000 for name, ns in before.items()}


def _cpu_ns(process_id: int) -> int:
    threads = Path(f"/proc/{process_id}/task").glob("*/schedstat")  # more exact than the ticks of `stat`
    return sum(int(each.read_text().split()[0]) for each in threads)


def main() -> None:
    """Print the table of the counts and the functions with most calls, or the CPU times."""
    parser = parser_of(__doc__)
    parser.add_argument("--messages", type=int, default=500, help="messages to count (default: 500)")
    parser.add_argument("--top", type=int, default=10, help="functions to print per process (default: 10)")
    parser.add_argument(
        "--cpu", action="store_true", help="measure CPU times in us instead, without counting"
    )
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        play(given.role, given.address)
    elif given.cpu:
        times = cpu(given.messages)
        print(*(f"{name} {us:.0f}" for name, us in {**times, "all": sum(times.values())}.items()), sep=", ")
    else:
        found = count(given.messages)
        sums = {name: summed(calls) for name, calls in found.items()}
        sums["all"] = dict(sum(map(Counter, sums.values()), Counter()))
        print(
            _HEAD,
            *(f"| {name} |" + "".join(f" {n:.1f} |" for n in of.values()) for name, of in sums.items()),
            sep="\n",
        )
        for name, calls in found.items():
            ours = Counter({each: number for each, number in calls.items() if "/tuplewire" in each[0]})
            print(f"\n{name}:")
            for (file, function, line), number in ours.most_common(given.top):
                print(f"{number:6.2f}  {Path(file).name}:{line} {function}")


if __name__ == "__main__":
    main()
