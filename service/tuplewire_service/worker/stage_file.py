"""Temporary files for what attempts of sinks have staged. They have no name, and go with the process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence

from tuplewire.errors import ResourceLimitError
from tuplewire.group import TaskGroup
from tuplewire.wire.codec import groups_of, plain_frame
from tuplewire.wire.opaque_pb2 import OpaqueFrame


class StageFile:
    """One attempt's file; groups are added at its end. One thread at a time."""

    def __init__(self, directory: str | None) -> None:
        """Open one. directory: None: the system's for temporary files. Raises ResourceLimitError."""
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - see close()
        except OSError as error:
            raise _unusable(directory, error) from error
        self._directory = directory
        self._end = 0

    def write(self, groups: Iterable[TaskGroup]) -> list[tuple[int, int]]:
        """Write groups; return the offset and the length of each. Raises ResourceLimitError."""
        written = []
        parts = []
        end = self._end
        for group in groups:
            data = plain_frame([group])
            written.append((end, len(data)))
            parts.append(data)
            end += len(data)
        rest = memoryview(b"".join(parts))
        try:
            self._file.seek(self._end)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _unusable(self._directory, error) from error
        self._end = end
        return written

    def read(self, places: Sequence[tuple[int, int]]) -> list[TaskGroup]:
        """Return the groups at these offsets, of these lengths."""
        groups = []
        for offset, length in places:
            self._file.seek(offset)
            data = b""
            while len(data) < length and (part := self._file.read(length - len(data))):
                data += part
            groups += groups_of(OpaqueFrame.FromString(data))
        return groups

    def close(self) -> None:
        """Close it, which gives its space back."""
        self._file.close()


def _unusable(directory: str | None, error: OSError) -> ResourceLimitError:
    where = directory or tempfile.gettempdir()
    return ResourceLimitError(
        f"this worker cannot stage in {where}: {error.strerror}; set its staging-directory to one "
        "that has room"
    )
