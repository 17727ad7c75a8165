"""The temporary file for what attempts of sinks have staged. It has no name, and goes with the process.

All attempts share one file: with a file each, one program could use up the worker's descriptors. The space of
an attempt is given back by punching a hole (fallocate, Linux). Where the system cannot do that, it is given
back with the last attempt in the file.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterable

from tuplewire.errors import ResourceLimitError
from tuplewire.values.group import TaskGroup
from tuplewire.wire.codec import groups_of, plain_frame
from tuplewire.wire.opaque_pb2 import OpaqueFrame

_BLOCK_BYTES = 4096
"""Each piece begins in a block of its own: a hole frees whole blocks only."""
_MOST_BYTES = 1 << 40
"""The offset after which another file is begun; holes count, and ext4 ends at 16 TiB."""
_PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE."""
_libc = ctypes.CDLL(None)


class _SharedFile:
    def __init__(self, directory: str | None) -> None:
        self.directory = directory
        try:
            self.file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - see StageFile.close()
        except OSError as error:
            raise _unusable(directory, error) from error
        self.end = 0
        self.users = 0


class StageFiles:
    """The files of a worker: one, or a second one after a terabyte. Thread-safe."""

    def __init__(self, directory: str | None) -> None:
        """Open nothing yet. directory: None: the system's for temporary files."""
        self._directory = directory
        self._lock = threading.Lock()
        self._shared: _SharedFile | None = None

    def attempt(self) -> StageFile:
        """Return the part of an attempt that begins; close() it. Raises ResourceLimitError."""
        with self._lock:
            if self._shared is None or not self._shared.users or self._shared.end >= _MOST_BYTES:
                self._shared = _SharedFile(self._directory)
            self._shared.users += 1
            return StageFile(self._shared, self._lock)


class StageFile:
    """One attempt's part of the file; groups are added to it. One thread at a time."""

    def __init__(self, shared: _SharedFile, lock: threading.Lock) -> None:
        self._shared = shared
        self._lock = lock
        self._parts: list[tuple[int, int]] = []

    def write(self, groups: Iterable[TaskGroup]) -> list[tuple[int, int]]:
        """Write groups; return the offset and the length of each. Raises ResourceLimitError."""
        frames = [plain_frame([group]) for group in groups]
        rest = memoryview(b"".join(frames))
        with self._lock:
            start = self._shared.end
            self._shared.end += -(-len(rest) // _BLOCK_BYTES) * _BLOCK_BYTES
        self._parts.append((start, len(rest)))
        written = []
        place = start
        for frame in frames:
            written.append((place, len(frame)))
            place += len(frame)
        try:
            while rest:
                count = os.pwrite(self._shared.file.fileno(), rest, start)
                rest, start = rest[count:], start + count
        except OSError as error:
            raise _unusable(self._shared.directory, error) from error
        return written

    def read(self, offset: int, length: int) -> list[TaskGroup]:
        """Return the groups at an offset, of this length."""
        data = b""
        while len(data) < length and (
            part := os.pread(self._shared.file.fileno(), length - len(data), offset + len(data))
        ):
            data += part
        return groups_of(OpaqueFrame.FromString(data))

    def close(self) -> None:
        """Give the space back."""
        with self._lock:
            self._shared.users -= 1
            if not self._shared.users:
                self._shared.file.close()
                return
            for start, length in self._parts:
                _punch(self._shared.file.fileno(), start, length)


def _punch(descriptor: int, start: int, length: int) -> None:
    """Free the whole blocks of a part of a file; without effect where the system cannot."""
    if length and hasattr(_libc, "fallocate"):
        blocks = -(-length // _BLOCK_BYTES) * _BLOCK_BYTES
        _libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(blocks))


def _unusable(directory: str | None, error: OSError) -> ResourceLimitError:
    where = directory or tempfile.gettempdir()
    return ResourceLimitError(
        f"this worker cannot stage in {where}: {error.strerror}; set its staging-directory to one "
        "that has room"
    )
