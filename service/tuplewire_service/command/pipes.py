"""The progress of a pipe's reader, so that a command acknowledges no message that was never read."""

from __future__ import annotations

import fcntl
import select
import struct
import termios
from collections.abc import Sequence
from typing import BinaryIO

_MOST_POLLS = 1000
_POLL_MILLIS = 1


def await_reader(out: BinaryIO) -> None:
    """Wait at most 1 s until a pipe's reader has read all. Raises BrokenPipeError if it closes the pipe."""
    poller = select.poll()
    poller.register(out, 0)  # reports only that the reader has closed the pipe
    for _ in range(_MOST_POLLS):
        if not _unread_bytes(out):
            return
        if poller.poll(_POLL_MILLIS):
            raise BrokenPipeError


def count_read(out: BinaryIO, sizes: Sequence[int]) -> int:
    """Return the number of the last written messages, with these sizes, that the reader has read."""
    unread, read = _unread_bytes(out), len(sizes)
    while unread > 0 and read:
        read -= 1
        unread -= sizes[read]
    return read


def _unread_bytes(out: BinaryIO) -> int:
    (unread,) = struct.unpack("i", fcntl.ioctl(out, termios.FIONREAD, bytes(4)))
    return int(unread)
