"""A worker in a separate process, started by the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import eventually
from helpers.admin import get
from helpers.tools import ran
from tuplewire.settings.settings import ENVIRONMENT_PREFIX
from tuplewire.wire import control_pb2
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.worker.assignment import AssignedWorker, Assignment

COMMAND = [sys.executable, "-m", "tuplewire_service"]


def environment_without_ours() -> dict[str, str]:
    """Return the environment of this process without Tuplewire's variables."""
    return {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}


def run_command(*arguments: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return ran(*COMMAND, *map(str, arguments), seconds=timeout, env=environment_without_ours())


@dataclass
class Running:
    """A worker under test."""

    process: subprocess.Popen[bytes]
    directory: Path
    bound: dict[str, Any]

    @property
    def address(self) -> str:
        return str(self.bound["address"])

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)

    def get(self, path: str, accept: str = "") -> tuple[int, str]:
        return get(str(self.bound["metrics_url"]).removesuffix("/metrics") + path, accept)


@contextlib.contextmanager
def running(
    directory: Path, *flags: str, command: list[str] | None = None, environment: dict[str, str] | None = None
) -> Iterator[Running]:
    """Start a worker on free ports, and kill it if the test has not stopped it."""
    addresses = directory / "addresses.json"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(command or COMMAND),
                "worker",
                "--worker-id=a",
                "--listen=127.0.0.1:0",
                f"--listen-unix={directory}/w.sock",
                "--listen-admin=127.0.0.1:0",
                f"--address-file={addresses}",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment_without_ours(), **(environment or {})},
        )
    try:
        eventually(lambda: addresses.exists() or process.poll() is not None, 60, "addresses written")
        assert process.poll() is None, (directory / "log").read_text(encoding="utf-8")
        yield Running(process, directory, json.loads(addresses.read_text(encoding="utf-8")))
    finally:
        process.kill()
        process.wait()


def assignment_for(worker: Running, version: int = 1, topology: str = "default") -> control_pb2.Assignment:
    """Return an assignment of the tasks 0 and 1 to this worker."""
    return assignment_to_wire(Assignment(version, topology, (AssignedWorker("a", worker.address, (0, 1)),)))
