"""The worker beside a PySpark task or its driver: one that is there, or one that is started for the run.

Whatever is started asks everybody for a token that was made for this run alone.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import ConfigError
from tuplewire.identity.credentials import Credentials
from tuplewire.processes.child import write_private
from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.settings.addresses import (
    ADDRESS_VARIABLE,
    TOPOLOGY_VARIABLE,
    is_loopback,
    join_host_port,
    split_host_port,
)
from tuplewire_topology.spark.plan import Place

_DRAIN_SECONDS = 5.0
_TLS = "TUPLEWIRE_TLS_"
"""The variables that hold for a worker that is started, too."""
_WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - recognized, not bound


@dataclass(frozen=True, slots=True)
class RunToken:
    """What the workers that a run starts ask for, and its members show. Travels in Spark's closure.

    Guarantee: it is in no repr, argument, environment, log or error; only in files of mode 0600.
    """

    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @contextmanager
    def kept(self) -> Iterator[RunKey]:
        """Write it to a file of this process, which goes with the block."""
        with tempfile.TemporaryDirectory(prefix="tuplewire-") as directory:
            file = Path(directory, "token")
            write_private(file, f"run {self.secret}\n".encode(), None)
            yield RunKey(file)


@dataclass(frozen=True, slots=True)
class RunKey:
    """Where a process of a run has the run's token."""

    file: Path

    def to(self, place: Place) -> Credentials:
        """Return what to show to a worker: the run's token if the run has started it, else as always.

        TLS is the environment's for both.
        """
        return self.to_own() if place.own else Credentials.from_environment()

    def to_own(self) -> Credentials:
        """Return what to show to a worker that the run has started."""
        # In the clear it is worth something while the run lasts, and on its own workers only.
        return replace(Credentials.from_environment(), token_file=str(self.file), allow_plaintext=True)


@contextmanager
def nearest_worker(
    address: str | None, host: str, topology: str, timeout: float, key: RunKey
) -> Iterator[Place]:
    """Find the worker at an address, by default TUPLEWIRE_ADDRESS, or start one, which ends with the block.

    host: this machine's name for others. topology: of a worker that is started, unless TUPLEWIRE_TOPOLOGY
    names that of the deployed ones. timeout: for the worker to answer, in seconds. key: what a worker that is
    started asks for. Raises UnreachableError when none answers, LaunchError when one that is started does not
    bind, and ConfigError where none can be started.
    """
    with ExitStack() as stack:
        address = address or os.environ.get(ADDRESS_VARIABLE)
        own = not address
        if not address:
            worker = _own_worker(host, topology, key)
            stack.callback(worker.stop)
            worker.start(timeout)
            address = worker.endpoints[0].unix_address
        credentials = key.to_own() if own else Credentials.from_environment()
        with ControlClient(address, timeout, credentials=credentials) as control:
            status = control.status()
        tcp = next((each for each in status.addresses if not each.startswith("unix:")), "")
        named, _, port = tcp.rpartition(":")
        peer = join_host_port(_host_of(address, host), int(port)) if named in _WILDCARDS else tcp
        yield Place(
            address,
            status.worker_id,
            peer,
            status.topology,
            status.assignment_version,
            own=own,
            tls=credentials.secures(peer),
        )


def _host_of(address: str, here: str) -> str:
    """Return the host of a worker that listens on all addresses: where it was reached, or this one."""
    reached = "" if address.startswith("unix:") else split_host_port(address)[0]
    return here if not reached or is_loopback(reached) else reached


def _own_worker(host: str, topology: str, key: RunKey) -> WorkerProcesses:
    """Return a worker to start."""
    if find_spec("tuplewire_service") is None:
        raise ConfigError(
            f"there is no worker beside this process ({ADDRESS_VARIABLE} is not set), and none can be "
            "started: install tuplewire[service] for Spark's executors, or name workers"
        )
    return WorkerProcesses(
        1,
        os.environ.get(TOPOLOGY_VARIABLE) or topology,
        # Without TLS the token crosses the network in the clear, as Spark's own data does by default.
        flags=[
            f"--worker-id={host}-{os.getpid()}",
            f"--listen={host}:0",
            f"--token-file={key.file}",
            "--allow-plaintext",
        ],
        drain_seconds=_DRAIN_SECONDS,
        environment={name: value for name, value in os.environ.items() if name.startswith(_TLS)},
    )
