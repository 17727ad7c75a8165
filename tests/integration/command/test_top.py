"""`tuplewire top`: the whole cluster from any of its workers, for terminals and scripts."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import eventually
from helpers.terminals import on_terminal
from helpers.topology import workers_with
from helpers.traffic import blocked
from helpers.worker_process import COMMAND, environment_without_ours, run_command

from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.command.viewer.cluster_poller import ClusterPoller
from tuplewire_service.command.viewer.cluster_rows import NO_ANSWER, cluster_rows

SLOW_TASK = 12
LEFT_SCREEN = b"\x1b[?1049l"
"""The escape sequence with which a program restores the terminal's previous screen."""


class Cluster(NamedTuple):
    """Two workers. The first owns tasks 0 to 9, the second owns tasks 10 to 19."""

    near: Endpoint
    far: Endpoint


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run the cluster with a sender, and with a consumer that never acknowledges messages."""
    flags = ["--receive-queue-messages=100", "--drain-seconds=0.1"]
    with workers_with(range(10), range(10, 20), topology="default", flags=flags) as workers:
        near, far = workers.endpoints
        with blocked(near.address, far.address, SLOW_TASK):
            yield Cluster(near, far)


def looked(address: str) -> dict[str, Any]:
    """Return the output of `tuplewire top --once --json`."""
    ended = run_command("top", "--address", address, "--once", "--json", "--interval=0.3")
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def culprit(address: str) -> str:
    """Return the sentence on the task that blocks most, or an empty string. A full queue has another one."""
    return next((each for each in looked(address)["problems"] if each.startswith("task")), "")


def test_the_culprit_is_named_from_either_worker(cluster: Cluster) -> None:
    """Both workers name the blocking task, its worker, the blocked senders and the reason."""
    for worker in cluster:
        said = eventually(lambda worker=worker: culprit(worker.address), 60, "somebody blocks")  # type: ignore[misc]
        assert said.startswith(f"task {SLOW_TASK} at worker-1 blocks senders at worker-0")
        assert re.search(r": sleeps has [0-9]+ unacknowledged$", said)


def test_scripts_get_everything(cluster: Cluster) -> None:
    """The JSON output has workers, tasks, peers, senders and consumers, with rates."""
    eventually(lambda: culprit(cluster.near.address), 60, "somebody blocks")
    told = looked(cluster.near.address)
    assert [each["worker"] for each in told["workers"]] == ["worker-0", "worker-1"]
    assert {each["state"] for each in told["workers"]} == {"ready"}
    assert told["workers"][0]["accepted_rate"] is not None
    assert [each["task"] for each in told["tasks"]] == list(range(20))
    slow = told["tasks"][SLOW_TASK]
    assert (slow["worker"], slow["consumer"]) == ("worker-1", "sleeps")
    assert slow["blocked_workers"][0] == "worker-0"
    assert slow["blocking"] > 0
    assert {(each["worker"], each["peer"]) for each in told["peers"]} == {
        ("worker-0", "worker-1"),
        ("worker-1", "worker-0"),
    }
    assert "sends" in {each["sender"] for each in told["senders"]}
    assert [each["consumer"] for each in told["consumers"]] == ["sleeps"]


def test_once_prints_tables(cluster: Cluster) -> None:
    """In a pipe, `--once` prints plain text; a filter keeps the rows that contain it."""
    text = run_command(
        "top", "--address", cluster.near.address, "--once", "--interval=0.2", "--filter=sleeps"
    ).stdout
    assert "\ntasks\n" in text
    assert re.search(rf"^{SLOW_TASK} +worker-1 .* sleeps *$", text, re.MULTILINE)
    assert "\nworkers\n" not in text


def test_dead_and_hung_workers_are_reported_within_a_poll() -> None:
    """The next poll names a killed worker; a poll does not wait longer than a second for one that hangs."""
    with workers_with([1], [2, 3], [4], topology="default", drain_seconds=0.1) as workers:
        near, killed, hung = workers.endpoints
        with ClusterPoller(near.address, ControlClient) as looks:
            looks.poll()
            os.kill(killed.process_id, signal.SIGKILL)
            os.kill(hung.process_id, signal.SIGSTOP)
            # The signal does not stop all threads at once: a poll found the worker ready.
            eventually(lambda: " T " in Path(f"/proc/{hung.process_id}/stat").read_text())
            try:
                began = time.monotonic()
                rows = cluster_rows(looks.poll())
                assert time.monotonic() - began < 2
            finally:
                os.kill(hung.process_id, signal.SIGCONT)
            assert [(each.state, each.task_count) for each in rows.workers[1:]] == [
                (NO_ANSWER, 2),
                (NO_ANSWER, 1),
            ]
            for worker, sentence in zip((killed, hung), rows.problems, strict=True):
                assert re.match(
                    rf"{worker.worker_id} has not answered for \d s: .*{worker.address}", sentence
                )
            assert cluster_rows(looks.poll()).workers[2].state == "ready"


def test_without_a_terminal_it_says_what_to_do() -> None:
    """The live view requires a terminal; the error names the alternatives, or the unreachable worker."""
    ended = run_command("top", "--address", "127.0.0.1:1")
    assert (ended.returncode, "a terminal as its output: use" in ended.stderr) == (64, True)
    assert run_command("top", "--address", "127.0.0.1:1", "--once", "--interval=0").returncode == 64
    nobody = run_command("top", "--address", "127.0.0.1:1", "--once", "--timeout=0.5")
    assert (nobody.returncode, "127.0.0.1:1" in nobody.stderr) == (1, True)


def test_a_terminal_gets_the_live_view(cluster: Cluster) -> None:
    """The live view draws the filtered rows that fit; Ctrl-C restores the terminal, and prints nothing."""
    command = [*COMMAND, "top", "--address", cluster.near.address, "--interval=0.2", "--filter=worker-1"]
    with on_terminal(command, {**environment_without_ours(), "TERM": "xterm-256color"}) as shown:
        eventually(lambda: shown.seen().count(b"blocks senders") > 1, 60, "the culprit is drawn again")
        assert b"\x1b[1;31mtask %d at worker-1" % SLOW_TASK in shown.seen()  # bold and red
        eventually(lambda: re.search(rb"\n%d +worker-1 " % SLOW_TASK, shown.seen()) is not None, 60)
        shown.process.send_signal(signal.SIGINT)
        eventually(shown.ended, 60, "it ends")
        assert shown.process.returncode == 130
        assert b"interrupted" not in shown.seen().rpartition(LEFT_SCREEN)[2]
        assert shown.as_before()
