"""Finds the worker next to a PySpark task or its driver, or starts one that requires the run's own token.

Used by member.py and submit.py. Owns the started worker and the token's file. Thread-safe.
Design: docs/design/topologies.md.
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
"""The prefix of the environment variables that a started worker inherits."""
_WILDCARDS = ("0.0.0.0", "[::]")  # noqa: S104 - recognized, not bound


@dataclass(frozen=True, slots=True)
class RunToken:
    """The token that a run's own workers require from its members. It travels in Spark's closure.

    Guarantee: it is in no repr, argument, environment, log or error; only in files of mode 0600.
    """

    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @contextmanager
    def as_file(self) -> Iterator[Path]:
        """Yield a file of this process with the token, and delete the file after the block."""
        with tempfile.TemporaryDirectory(prefix="tuplewire-") as directory:
            file = Path(directory, "token")
            file.touch(0o600, exist_ok=False)
            file.write_text(f"run {self.secret}\n", encoding="ascii")
            yield file


def credentials(token_file: Path, *, own: bool) -> Credentials:
    """Return a worker's credentials: the environment's, with the run's token if the run started it."""
    found = Credentials.from_environment()
    # Plaintext is acceptable: the token is valid only during the run, and only at its own workers.
    return replace(found, token_file=str(token_file), allow_plaintext=True) if own else found


@contextmanager
def nearest_worker(
    address: str | None, host: str, topology: str, timeout: float, token_file: Path
) -> Iterator[Place]:
    """Yield the worker at `address` or TUPLEWIRE_ADDRESS; with neither, start one and stop it at the end.

    host: this machine's name for other machines. topology: of a started worker, unless TUPLEWIRE_TOPOLOGY is
    set. timeout: seconds to wait for an answer. token_file: the token that a started worker requires. Raises
    UnreachableError if the worker does not answer, LaunchError if a started one does not bind, and
    ConfigError if none can be started.
    """
    with ExitStack() as stack:
        address = address or os.environ.get(ADDRESS_VARIABLE)
        own = not address
        if not address:
            worker = _own_worker(host, topology, token_file)
            stack.callback(worker.stop)
            worker.start(timeout)
            address = worker.endpoints[0].unix_address
        access = credentials(token_file, own=own)
        with ControlClient(address, timeout, credentials=access) as control:
            status = control.status()
        tcp = next((each for each in status.addresses if not each.startswith("unix:")), "")
        named, _, port = tcp.rpartition(":")  # peers cannot connect to a wildcard address
        peer = join_host_port(_host_of(address, host), int(port)) if named in _WILDCARDS else tcp
        tls = access.secures(peer)
        yield Place(address, status.worker_id, peer, status.topology, status.assignment_version, own, tls)


def _host_of(address: str, here: str) -> str:
    """Return the host of a worker that listens on all addresses; `here` if its address is local."""
    reached = "" if address.startswith("unix:") else split_host_port(address)[0]
    return here if not reached or is_loopback(reached) else reached


def _own_worker(host: str, topology: str, token_file: Path) -> WorkerProcesses:
    """Return a worker that is not started yet."""
    if find_spec("tuplewire_service") is None:
        raise ConfigError(
            f"there is no worker next to this process ({ADDRESS_VARIABLE} is not set), and none can be "
            "started: install tuplewire[service] for Spark's executors, or name workers"
        )
    return WorkerProcesses(
        1,
        os.environ.get(TOPOLOGY_VARIABLE) or topology,
        # Without TLS, the token crosses the network in plaintext, like Spark's own data by default.
        flags=[
            f"--worker-id={host}-{os.getpid()}",
            f"--listen={host}:0",
            f"--token-file={token_file}",
            "--allow-plaintext",
        ],
        drain_seconds=_DRAIN_SECONDS,
        environment={name: value for name, value in os.environ.items() if name.startswith(_TLS)},
    )
