"""The worker beside a program: the sidecar, one that is named, or one that is started for the time being."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tuplewire.channel import ADDRESS_VARIABLE
from tuplewire.config import ENVIRONMENT_PREFIX
from tuplewire.control import ControlClient
from tuplewire.credentials import Credentials
from tuplewire.errors import ConfigError, UnreachableError
from tuplewire.spark.topology.plan import Place

_DRAIN_SECONDS = 5.0
_STOP_MARGIN_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LAST_CHARACTERS = 2000
_SECURITY = ("TUPLEWIRE_TLS_", "TUPLEWIRE_TOKEN_FILE", "TUPLEWIRE_PERMISSIONS_FILE")
"""The variables that hold for a worker that is started, too."""
_WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - recognized, not bound


@contextmanager
def nearest_worker(address: str | None, host: str, topology: str, timeout: float) -> Iterator[Place]:
    """Find the worker at an address, by default TUPLEWIRE_ADDRESS, or start one, which ends with the block.

    host: this machine's name for others. topology: of a worker that is started; others have theirs. timeout:
    for the worker to answer, in seconds. Raises UnreachableError when none does, and ConfigError where none
    can be started.
    """
    address = address or os.environ.get(ADDRESS_VARIABLE)
    if address:
        yield _place(address, host, timeout)
        return
    with _embedded(host, topology, timeout) as started:
        yield _place(started, host, timeout)


def _place(address: str, host: str, timeout: float) -> Place:
    with ControlClient(address, timeout) as control:
        status = control.status()
    tcp = next((each for each in status.addresses if not each.startswith("unix:")), "")
    named, _, port = tcp.rpartition(":")
    peer = f"{host}:{port}" if named in _WILDCARDS else tcp
    return Place(address, status.worker_id, peer, status.topology, status.assignment_version)


@contextmanager
def _embedded(host: str, topology: str, timeout: float) -> Iterator[str]:
    """Run a worker process; it does not outlive this one, even when that is killed."""
    if find_spec("tuplewire_service") is None:
        raise ConfigError(
            f"there is no worker beside this process ({ADDRESS_VARIABLE} is not set), and none can be "
            "started: install tuplewire[service] for Spark's executors, or name workers"
        )
    with tempfile.TemporaryDirectory(prefix="tuplewire-") as directory:
        bound, log = Path(directory, "worker.json"), Path(directory, "worker.log")
        words = [
            sys.executable,
            "-m",
            "tuplewire_service",
            "worker",
            "--until-input-ends",
            f"--worker-id={host}-{os.getpid()}",
            f"--topology={topology}",
            f"--listen={host}:0",
            f"--listen-unix={Path(directory, 'worker.sock')}",
            "--admin=127.0.0.1:0",
            f"--address-file={bound}",
            f"--drain-seconds={_DRAIN_SECONDS}",
        ]
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(ENVIRONMENT_PREFIX) or key.startswith(_SECURITY)
        }
        if not Credentials.from_environment().secures(f"{host}:0"):
            # Whoever runs a topology without workers of its own has Spark's network for it as it is.
            words.append("--allow-plaintext")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with log.open("wb") as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        try:
            _await_file(bound, process, log, time.monotonic() + timeout)
            yield json.loads(bound.read_text(encoding="utf-8"))["unix_address"]
        finally:
            _end(process)


def _await_file(file: Path, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    while not file.exists():
        try:
            code = process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None or time.monotonic() > deadline:
            ended = "did not bind in time" if code is None else f"ended with code {code}"
            words = log.read_text(encoding="utf-8", errors="replace")[-_LAST_CHARACTERS:]
            raise UnreachableError(f"the worker that was started beside this process {ended}:\n{words}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_DRAIN_SECONDS + _STOP_MARGIN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin:
        process.stdin.close()
