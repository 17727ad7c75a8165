"""`tuplewire offsets` with real workers."""

from __future__ import annotations

import subprocess
from functools import partial

from helpers.topology import numbered, pair_of_workers
from helpers.traffic import client_of, deliver
from helpers.worker_process import run_command

offsets = partial(run_command, "offsets", "--address")


def rows(done: subprocess.CompletedProcess[str]) -> dict[int, list[str]]:
    """Return the printed columns by task."""
    assert done.returncode == 0, done.stderr
    cells = [line.split() for line in done.stdout.splitlines()[2:]]
    return {int(task): others for task, *others in cells}


def test_offsets_are_shown_and_moved() -> None:
    """Offsets of both workers are shown and moved, to the last at most; a task with a consumer is refused."""
    with pair_of_workers() as workers:
        near, far = workers.near_task(), workers.far_task()
        with client_of(workers.near.address) as client:
            client.send(numbered(near, range(10)))
            deliver(client, numbered(far, range(100, 103)))
            tasks = f"--tasks={near},{far}"
            found = rows(offsets(workers.near.address, tasks))
            assert found[near] == [workers.near.worker_id, "0", "10", "10", "10", "-"]
            assert found[far] == [workers.far.worker_id, "0", "3", "3", "9", "-"]
            assert found.keys() < rows(offsets(workers.near.address)).keys()
            found = rows(offsets(workers.far.address, tasks, "--acknowledge-to=4"))
            assert [each[1:4] for each in (found[near], found[far])] == [["4", "10", "6"], ["3", "3", "0"]]
            with client.recv([near], timeout=20) as batches:
                assert [int(message.message) for message in next(batches)] == [4, 5, 6, 7, 8, 9]
                refused = offsets(workers.near.address, f"--tasks={near}", "--acknowledge-to=latest")
                assert refused.returncode != 0
                assert f"task {near} has a consumer" in refused.stderr
            found = rows(offsets(workers.near.address, f"--tasks={near}", "--acknowledge-to=latest"))
            assert found[near][1:4] == ["10", "10", "0"]


def test_wrong_arguments() -> None:
    """--acknowledge-to requires --tasks, and accepts a number or `latest`."""
    for arguments in (["--acknowledge-to=latest"], ["--tasks=1", "--acknowledge-to=soon"]):
        done = offsets("127.0.0.1:1", *arguments)
        assert done.returncode == 64
        assert "--acknowledge-to takes --tasks" in done.stderr
