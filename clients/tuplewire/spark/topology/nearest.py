"""The worker beside a program: the sidecar, one that is named, or one that is started for the time being."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.grpc_channel import ADDRESS_VARIABLE
from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.processes import Child, bound_addresses, worker_command
from tuplewire.spark.topology.plan import Place

_DRAIN_SECONDS = 5.0
_STOP_MARGIN_SECONDS = 5.0
_SECURITY = ("TUPLEWIRE_TLS_", "TUPLEWIRE_TOKEN_FILE", "TUPLEWIRE_PERMISSIONS_FILE")
"""The variables that hold for a worker that is started, too."""
_WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - recognized, not bound


@contextmanager
def nearest_worker(address: str | None, host: str, topology: str, timeout: float) -> Iterator[Place]:
    """Find the worker at an address, by default TUPLEWIRE_ADDRESS, or start one, which ends with the block.

    host: this machine's name for others. topology: of a worker that is started; others have theirs. timeout:
    for the worker to answer, in seconds. Raises UnreachableError when none does, LaunchError when one that is
    started does not bind, and ConfigError where none can be started.
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
    environment = {key: value for key, value in os.environ.items() if key.startswith(_SECURITY)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    # Whoever runs a topology without workers of its own has Spark's network for it as it is.
    flags = [] if Credentials.from_environment().secures(f"{host}:0") else ["--allow-plaintext"]
    with tempfile.TemporaryDirectory(prefix="tuplewire-") as directory:
        worker = Child(
            worker_command(
                f"{host}-{os.getpid()}",
                topology,
                Path(directory, "worker.log"),
                listen=f"{host}:0",
                drain_seconds=_DRAIN_SECONDS,
                flags=flags,
                environment=environment,
            )
        )
        try:
            yield str(bound_addresses(worker, time.monotonic() + timeout)["unix_address"])
        finally:
            worker.terminate()
            worker.end(time.monotonic() + _DRAIN_SECONDS + _STOP_MARGIN_SECONDS)
