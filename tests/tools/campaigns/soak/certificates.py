"""The certificates of workers and programs, which are replaced while they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from helpers.secured import Authority, files_of, tls_flags

from tuplewire import Credentials

_WORKER, _PROGRAM = "worker.example", "etl.example"


class Certificates:
    """The files of all processes. Every third exchange removes trust in an authority."""

    def __init__(self, folder: Path) -> None:
        """Write the first certificates."""
        self._worker_files = folder / "worker"
        self._program_files = folder / "program"
        self._steps = self._order()
        self._authority = Authority()
        self._authority.issue(_WORKER).write(self._worker_files)
        self.flags = [*tls_flags(self._worker_files), f"--tls-client-names={_PROGRAM}"]
        """The flags of a worker."""
        self.program: Credentials = files_of(self._authority.issue(_PROGRAM), self._program_files, _WORKER)
        self.foreign = files_of(Authority().issue(_PROGRAM), folder / "foreign", _WORKER)
        """A certificate that the workers do not trust."""

    def exchange(self) -> None:
        """Replace all files, with the workers' files first."""
        signed_by, trusted = next(self._steps)
        ca = b"".join(each.pem for each in trusted)
        for name, files in ((_WORKER, self._worker_files), (_PROGRAM, self._program_files)):
            replace(signed_by.issue(name), ca=ca).write(files)

    def _order(self) -> Iterator[tuple[Authority, tuple[Authority, ...]]]:
        """Trust a second authority, sign with it, stop trusting the first; repeat."""
        while True:
            old, new = self._authority, Authority()
            yield old, (old, new)
            yield new, (old, new)
            yield new, (new,)
            self._authority = new
