"""The memory of the pods: the calculated limit, and the memory that a full worker uses."""

from __future__ import annotations

import re
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers import eventually
from helpers.manifests import PROFILES, cluster, container, pods, quantity, the, write_files
from helpers.memory import MIB, rss
from helpers.tools import ROOT
from helpers.topology import ledger

from tuplewire import Client, TaskMessageBatch
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.config.config_sources import load
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.messaging.sender_sessions import MAX_SESSIONS
from tuplewire_service.worker.assignment import load_assignment

SIZED_FOR = re.compile(r"local-tasks=(\d+),remote-tasks=(\d+),sessions=(\d+)")
BOUNDS = (
    "receive_queue_messages",
    "receive_queue_bytes",
    "max_message_bytes",
    "max_frame_bytes",
    "staging_memory_bytes",
)
SIZE = 1000
BASE_BYTES = 64 * MIB
"""The memory of an idle worker."""
PER_MESSAGE_BYTES = 80
"""The memory for a message in addition to its payload, even if it is alone in its group."""
REMEMBERED_BYTES = MAX_SESSIONS * 5 * 1024
"""The memory for disconnected senders that may resume."""
PIECE_BYTES = 64 * MIB
"""Limits are rounded up to a multiple of this."""


def task_bytes(config: WorkerConfig, sessions: int) -> int:
    """Return the maximum size of a queue that `sessions` senders, joining one after the other, share."""
    payload = sum(
        max(config.receive_queue_bytes // joined, config.max_message_bytes)
        for joined in range(1, sessions + 1)
    )
    return payload + PER_MESSAGE_BYTES * config.receive_queue_messages


def memory_bytes(config: WorkerConfig, *, local_tasks: int, remote_tasks: int, sessions: int) -> int:
    """Return the memory limit for a worker.

    local_tasks: the number of its own tasks. remote_tasks: tasks of other workers that its programs send to.
    sessions: senders (programs and other workers) at the same time.
    """
    queues = (local_tasks + remote_tasks) * task_bytes(config, sessions)
    # Epochs of Spark's sinks, and copies of rejected messages.
    more = 2 * local_tasks * config.receive_queue_bytes + config.staging_memory_bytes
    senders = sessions * config.session.max_request_bytes + REMEMBERED_BYTES
    return -(-(BASE_BYTES + queues + more + senders) // PIECE_BYTES) * PIECE_BYTES


def bounds(profile: str) -> WorkerConfig:
    """Return the settings of a profile that bound the memory."""
    file = tomllib.loads(the(cluster(profile), "ConfigMap", "tuplewire-config")["data"]["worker.toml"])
    return load({name: str(file[name]) for name in BOUNDS}, {}).config


def sized_for(profile: str, kind: str) -> tuple[int, int, int]:
    """Return the sizes that a pod's annotation specifies: its own tasks, remote tasks, and sessions."""
    match = SIZED_FOR.fullmatch(pods(profile)[kind]["metadata"]["annotations"]["tuplewire/sized-for"])
    assert match
    local, remote, sessions = (int(text) for text in match.groups())
    return local, remote, sessions


def limit_of(profile: str, kind: str = "executor") -> int:
    """Return a pod's memory limit in bytes."""
    return int(quantity(container(pods(profile)[kind])["resources"]["limits"]["memory"]))


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", ["worker", "executor"])
def test_the_limit_is_what_the_settings_come_to(profile: str, kind: str) -> None:
    """The formula of docs/how-to/tune.md, with the profile's own settings, gives the pod's limit."""
    local, remote, sessions = sized_for(profile, kind)
    expected = memory_bytes(bounds(profile), local_tasks=local, remote_tasks=remote, sessions=sessions)
    assert limit_of(profile, kind) == expected


@pytest.mark.parametrize("profile", PROFILES)
def test_the_assignment_fits_the_size(profile: str, tmp_path: Path) -> None:
    """No worker outside Spark has more tasks than its pod is sized for."""
    path = write_files(profile, "tuplewire-assignment", tmp_path) / "assignment.json"
    local, remote, _ = sized_for(profile, "worker")
    tasks = [len(worker.tasks) for worker in load_assignment(path).workers]
    assert max(tasks) <= local
    assert sum(tasks) <= local + remote


@pytest.mark.parametrize("profile", ["dev", "prod"])
def test_the_page_shows_this_arithmetic(profile: str) -> None:
    """docs/how-to/tune.md lists both sizes of the chart's values, with the limit."""
    local, remote, sessions = sized_for(profile, "executor")
    task = f"{task_bytes(bounds(profile), sessions) / MIB:.1f}"
    row = f"| {local} + {remote} | {sessions} | {task} MiB | {limit_of(profile) // MIB} MiB |"
    page = (ROOT / "docs" / "how-to" / "tune.md").read_text(encoding="utf-8")
    assert any(line.endswith(row) and profile in line for line in page.splitlines()), row


def test_the_page_has_other_numbers_of_senders() -> None:
    """docs/how-to/tune.md has the limit for 40 and 100 senders, with the chart's own settings."""
    page = " ".join((ROOT / "docs" / "how-to" / "tune.md").read_text(encoding="utf-8").split())
    local, remote, _ = sized_for("prod", "worker")
    for sessions in (40, 100):
        limit = memory_bytes(bounds("prod"), local_tasks=local, remote_tasks=remote, sessions=sessions)
        assert f"{sessions} sessions need {limit // MIB:,} MiB" in page


@pytest.mark.slow
def test_a_full_worker_stays_below_its_limit() -> None:
    """Without a consumer, senders fill the worker one after another: its memory stays below the limit."""
    local, remote, sessions = sized_for("dev", "executor")
    config = bounds("dev")
    flags = [f"--{name.replace('_', '-')}={getattr(config, name)}" for name in BOUNDS]
    with WorkerProcesses(2, "default", drain_seconds=0.5, flags=flags) as workers, ExitStack() as senders:
        workers.assign({0: range(local), 1: range(local, local + remote)})
        worker = workers.endpoints[0]
        taken = [rss(worker.process_id)]
        for _ in range(sessions):
            sender = _sender(worker, config)
            senders.callback(sender.close, 0)
            for task in range(local + remote):
                count = config.receive_queue_bytes // SIZE
                sender.send(TaskMessageBatch.from_columns([task] * count, [b"x" * SIZE] * count))
            _is_full(worker)
            taken.append(rss(worker.process_id))
        assert SIZE * ledger(worker).pending > (local + remote) * config.receive_queue_bytes
        assert max(taken) < limit_of("dev")


def _sender(worker: Endpoint, config: WorkerConfig) -> Client:
    room = 64 * config.receive_queue_bytes
    many = room // SIZE
    return Client(
        worker.unix_address,
        overflow="fail",
        max_pending_bytes=room,
        max_pending_messages=many,
        max_pending_task_messages=many,
    )


def _is_full(worker: Endpoint) -> None:
    """Wait until the worker accepts no more messages."""
    seen: list[int] = []

    def still() -> bool:
        seen.append(ledger(worker).accepted)
        return seen[-8:] == seen[-1:] * 8

    eventually(still, 60, "nothing more is taken")
