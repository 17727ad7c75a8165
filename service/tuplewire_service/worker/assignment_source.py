"""An assignment from a file that is watched, which is how a ConfigMap arrives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from tuplewire.errors import TuplewireError
from tuplewire_service.worker.assignment import Assignment, load_assignment

logger = logging.getLogger(__name__)


class AssignmentFile:
    """Reads the file every second and hands an assignment on when the content has changed.

    The content itself is compared: a ConfigMap swaps a symlink somewhere in the path, and two writes within
    one tick of the clock leave one modification time.

    update: takes the assignment; what it raises (a stale version, a wrong topology) is an error of the file.
    errors: how often the file could not be read or used; the assignment before it stays in force.
    """

    def __init__(
        self, path: Path, update: Callable[[Assignment], bool], *, poll_seconds: float = 1.0
    ) -> None:
        self.path = path
        self.errors = 0
        self._update = update
        self._poll_seconds = poll_seconds
        self._seen: bytes | str | None = None

    def check(self) -> bool:
        """Look at the file now; True when an assignment was put in force."""
        content: bytes | str
        try:
            content = self.path.read_bytes()
        except OSError as error:
            content = error.strerror or str(error)
        if content == self._seen:
            return False
        self._seen = content
        try:
            assignment = load_assignment(self.path)
            changed = self._update(assignment)
        except TuplewireError as error:
            self.errors += 1
            logger.warning("assignment_file.refused", extra={"path": str(self.path), "reason": str(error)})
            return False
        if changed:
            logger.info(
                "assignment_file.applied", extra={"path": str(self.path), "version": assignment.version}
            )
        return changed

    async def watch(self) -> None:
        """Look at the file every so often, until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(self._poll_seconds)
