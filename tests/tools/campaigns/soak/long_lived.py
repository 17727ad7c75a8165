"""The workers of the month: two that live through all of it, one that is restarted, peers that come and go.

Two more, which nobody troubles, are what the first two are measured against. All of them show certificates,
which are exchanged while they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from campaigns.soak.generations import MEASURED_TASK, STEADY_TASKS, AssignmentWriter, Owners
from helpers.certificates import Authority
from helpers.restartable import RestartableWorker
from helpers.secured import files_of, tls_flags
from helpers.topology import status

from tuplewire import Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire_service.control.control_messages import assignment_to_wire
from tuplewire_service.testing import eventually

_WORKER, _PROGRAM = "worker.example", "etl.example"
_SETTLED_SECONDS = 60.0
NEAR, FAR, OTHER = "near", "far", "other"
_PEACE_NEAR, _PEACE_FAR = "near-in-peace", "far-in-peace"


def unix(endpoint: Endpoint) -> Endpoint:
    """Return a worker as programs reach it that need no certificate."""
    return replace(endpoint, address=endpoint.unix_address)


class Certificates:
    """What workers and programs show, and whom they trust. Every third exchange forgets an authority."""

    def __init__(self, folder: Path) -> None:
        """Write the first."""
        self.worker_files = folder / "worker"
        self._program_files = folder / "program"
        self._steps = self._order()
        self._authority = Authority()
        self._authority.issue(_WORKER).write(self.worker_files)
        self.program: Credentials = files_of(self._authority.issue(_PROGRAM), self._program_files, _WORKER)
        self.foreign = files_of(Authority().issue(_PROGRAM), folder / "foreign", _WORKER)

    def exchange(self) -> None:
        """Replace the files of all: those of the workers first."""
        signed_by, trusted = next(self._steps)
        ca = b"".join(each.pem for each in trusted)
        for name, files in ((_WORKER, self.worker_files), (_PROGRAM, self._program_files)):
            replace(signed_by.issue(name), ca=ca).write(files)

    def _order(self) -> Iterator[tuple[Authority, tuple[Authority, ...]]]:
        """Trust a second authority, sign by it, forget the first; and so on."""
        while True:
            old, new = self._authority, Authority()
            yield old, (old, new)
            yield new, (old, new)
            yield new, (new,)
            self._authority = new


class LongLived:
    """All workers, in a with statement. resume_seconds: the setting of that name."""

    def __init__(self, directory: Path, certificates: Certificates, resume_seconds: float) -> None:
        self._directory = directory
        self._flags = [
            *tls_flags(certificates.worker_files),
            f"--tls-client-names={_PROGRAM}",
            f"--resume-seconds={resume_seconds}",
            "--drain-seconds=20",
        ]
        self._stack = ExitStack()
        self._peers = 0
        self.peer: RestartableWorker | None = None
        self.ledgers: list[tuple[str, int, LedgerSnapshot]] = []
        """Of each worker that has ended: its id, its exit code, and the balance that it has printed."""
        fixed = {STEADY_TASKS[0]: NEAR, STEADY_TASKS[1]: FAR, MEASURED_TASK: FAR}
        self.writer = AssignmentWriter(directory / "assignment.json", fixed)
        self._peace = AssignmentWriter(directory / "peace.json", {MEASURED_TASK: _PEACE_FAR})

    def __enter__(self) -> Self:
        with self._stack as stack:
            self.near, self.far, self.other = (
                stack.enter_context(self._worker(name, self.writer)) for name in (NEAR, FAR, OTHER)
            )
            self.in_peace = [
                stack.enter_context(self._worker(name, self._peace)) for name in (_PEACE_NEAR, _PEACE_FAR)
            ]
            self._peace.write([each.endpoint for each in self.in_peace], {})
            for each in self.in_peace:
                each.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _worker(self, worker_id: str, writer: AssignmentWriter) -> RestartableWorker:
        return RestartableWorker(worker_id, self._directory, writer.file, self._flags)

    @property
    def present(self) -> list[RestartableWorker]:
        """Those that hold tasks."""
        return [self.near, self.far, self.other, *([] if self.peer is None else [self.peer])]

    @property
    def names(self) -> list[str]:
        """Their ids."""
        return [each.worker_id for each in self.present]

    def assign(self, owners: Owners) -> None:
        """Put owners in force at every worker, and wait until no task moves any more."""
        assignment = assignment_to_wire(self.writer.write([each.endpoint for each in self.present], owners))
        for each in self.present:
            with ControlClient(each.endpoint.unix_address) as control:
                control.update_assignment(assignment)
        eventually(self._settled, _SETTLED_SECONDS, f"version {self.writer.version} is in force")

    def _settled(self) -> bool:
        found = [status(unix(each.endpoint)) for each in self.present]
        return all(each.assignment_version == self.writer.version and not each.moving_tasks for each in found)

    def restart(self) -> None:
        """Restart the third worker, which drains."""
        ended = self.other.restart()
        self.ledgers.append((OTHER, ended.exit_code, ended.ledger))

    def peer_comes(self) -> None:
        """Start a worker that was not there before."""
        self._peers += 1
        self.peer = self._stack.enter_context(self._worker(f"peer-{self._peers}", self.writer))

    def peer_goes(self) -> None:
        """End the worker that came last, which holds no task any more: by turns it drains, or is killed."""
        assert self.peer is not None
        peer, self.peer = self.peer, None
        if self._peers % 2:
            self.ledgers.append((peer.worker_id, *peer.end()))
        else:
            peer.kill()

    def end(self) -> None:
        """Let the three drain; nothing may be pending."""
        for each in (self.near, self.far, self.other):
            self.ledgers.append((each.worker_id, *each.end()))
