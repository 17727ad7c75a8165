"""Run the clients and workers of two commits together, in all combinations.

Each client sends through each worker to tasks of both. The tasks then move to the other worker, and clients
of the other commit receive the messages. Exit status: 0 if all messages arrived once and in order.

Example: python tests/tools/bench/skew.py v0.1.0
Without a base: the newest tag of a release or, before the first one, the commit ten commits before this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from compare import ROOT, checked_out, commit_before, python_path

from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.wire.control_pb2 import Assignment

_TOPOLOGY = "skew"
_SEND = """
import sys, tuplewire
address, topology, task = sys.argv[1:]
with tuplewire.Client(address, topology=topology) as client:
    for number in range(1000):
        client.send(int(task), b"%d" % number)
    client.flush(60)
"""
_RECV = """
import sys, tuplewire
address, topology, task = sys.argv[1:]
got = []
with tuplewire.Client(address, topology=topology) as client, client.recv([int(task)], timeout=60) as batches:
    while len(got) < 1000:
        got += map(int, next(batches).payloads)
        batches.acknowledge()
assert got == list(range(1000)), got
"""


def _base() -> str:
    git = ["git", "-C", str(ROOT), "tag", "--list", "v*", "--sort=-version:refname"]
    tags = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split()
    return tags[0] if tags else commit_before()


def _run(tree: Path, program: str, address: str, task: int) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path(tree)}
    arguments = [address, _TOPOLOGY, str(task)]
    subprocess.run([sys.executable, "-c", program, *arguments], env=environment, check=True, timeout=120)


def _assign(groups: Sequence[WorkerProcesses], version: int, tasks: Sequence[Sequence[int]]) -> None:
    endpoints = [group.endpoints[0] for group in groups]
    workers = [endpoint.to_assigned_worker(own) for endpoint, own in zip(endpoints, tasks, strict=True)]
    assignment = Assignment(version=version, topology=_TOPOLOGY, workers=workers)
    controls = [ControlClient(endpoint.address) for endpoint in endpoints]
    for control in controls:
        control.update_assignment(assignment)
    for control in controls:
        control.wait_ready(60)
        control.close()


def main() -> None:
    """Run both commits together."""
    base = sys.argv[1] if len(sys.argv) > 1 else _base()
    with checked_out(base) as other, ExitStack() as stack:
        trees = (other, ROOT)
        groups = [
            stack.enter_context(
                WorkerProcesses(
                    1,
                    _TOPOLOGY,
                    flags=[f"--worker-id=worker-{index}"],
                    environment={"PYTHONPATH": python_path(tree)},
                )
            )
            for index, tree in enumerate(trees)
        ]
        cases = list(enumerate(product(trees, groups, (0, 1)), 1))
        first = [[task for task, (*_, owner) in cases if owner == index] for index in (0, 1)]
        _assign(groups, 1, first)
        for task, (tree, entry, _) in cases:
            _run(tree, _SEND, entry.endpoints[0].address, task)
        _assign(groups, 2, first[::-1])
        for task, (tree, entry, _) in cases:
            _run(trees[tree is other], _RECV, entry.endpoints[0].address, task)
        codes = [code for group in groups for code in group.stop()]
        if any(codes):
            raise SystemExit(f"the workers ended with {codes}: they dropped messages")
    print(f"clients and workers of {base[:12]} and of this commit work together: {len(cases)} combinations")


if __name__ == "__main__":
    main()
