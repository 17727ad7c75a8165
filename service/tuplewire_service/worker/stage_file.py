"""The temporary file of staged messages of sinks. It has no name, so the system removes it with the process.

All attempts share one file, because a file for each could exhaust the worker's descriptors. Closing an
attempt punches a hole into the file (fallocate, Linux). On other systems, the space is freed with the file's
last attempt. Used by staging.py and sinks.py. Owns the file. Thread-safe, except that each AttemptPart must
be used by one thread at a time. Design: docs/design/sinks.md.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from tuplewire.errors import ResourceLimitError
from tuplewire.values.group import TaskGroup
from tuplewire.wire.codec import groups_of, plain_frame
from tuplewire.wire.opaque_pb2 import OpaqueFrame

_BLOCK_BYTES = 4096
"""Each part starts in a new block, because a hole frees whole blocks only."""
_MAX_FILE_BYTES = 1 << 40
"""The offset at which a new file starts. Holes count, and ext4 is limited to 16 TiB."""
_PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE."""
_libc = ctypes.CDLL(None)


class _SharedFile:
    def __init__(self, directory: str | None) -> None:
        self.directory = directory
        try:
            self.file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - see AttemptPart.close()
        except OSError as error:
            raise _staging_error(directory, error) from error
        self.size = 0
        self.open_parts = 0


@dataclass(eq=False)
class StageFiles:
    """The files of a worker: one, or a second one after a terabyte. Thread-safe."""

    directory: str | None
    """None is the system's temporary directory."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shared: _SharedFile | None = None

    def create_part(self) -> AttemptPart:
        """Return the part of a new attempt, which must be closed. Raises ResourceLimitError."""
        with self._lock:
            if self._shared is None or not self._shared.open_parts or self._shared.size >= _MAX_FILE_BYTES:
                self._shared = _SharedFile(self.directory)
            self._shared.open_parts += 1
            return AttemptPart(self._shared, self._lock)


@dataclass(eq=False)
class AttemptPart:
    """One attempt's part of the file. Use it from one thread at a time."""

    _shared: _SharedFile
    _lock: threading.Lock
    _ranges: list[tuple[int, int]] = field(default_factory=list)

    def write(self, groups: Iterable[TaskGroup]) -> list[tuple[int, int]]:
        """Write groups; return the offset and the length of each. Raises ResourceLimitError."""
        frames = [plain_frame([group]) for group in groups]
        unwritten = memoryview(b"".join(frames))
        with self._lock:
            # Reserve the range under the lock; the write itself needs no lock.
            start = self._shared.size
            reserved = -(-len(unwritten) // _BLOCK_BYTES) * _BLOCK_BYTES
            self._shared.size += reserved
        self._ranges.append((start, reserved))
        lengths = list(map(len, frames))
        places = list(zip(accumulate(lengths, initial=start), lengths, strict=False))
        try:
            while unwritten:
                count = os.pwrite(self._shared.file.fileno(), unwritten, start)
                unwritten, start = unwritten[count:], start + count
        except OSError as error:
            raise _staging_error(self._shared.directory, error) from error
        return places

    def read(self, offset: int, length: int) -> list[TaskGroup]:
        """Return the groups of `length` bytes at an offset."""
        return groups_of(OpaqueFrame.FromString(os.pread(self._shared.file.fileno(), length, offset)))

    def close(self) -> None:
        """Free the space."""
        with self._lock:
            self._shared.open_parts -= 1
            if not self._shared.open_parts:
                self._shared.file.close()
                return
            descriptor = self._shared.file.fileno()
            if hasattr(_libc, "fallocate"):
                for start, reserved in self._ranges:
                    _libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(reserved))


def _staging_error(directory: str | None, error: OSError) -> ResourceLimitError:
    where = directory or tempfile.gettempdir()
    return ResourceLimitError(
        f"this worker cannot stage in {where}: {error.strerror}; set staging_directory to one with free space"
    )
