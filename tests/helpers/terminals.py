"""A program on a terminal, and its output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LINES, _COLUMNS = 40, 300


@dataclass
class OnTerminal:
    """A program on a separate terminal."""

    process: subprocess.Popen[bytes]
    controller: int
    terminal: int
    before: list[Any]
    """The terminal's settings before the program started."""
    _seen: bytearray = field(default_factory=bytearray)

    def seen(self) -> bytes:
        """Return all output so far."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.controller, 65536):
                self._seen += chunk
        return bytes(self._seen)

    def ended(self) -> bool:
        """Return True if the program has exited. Also reads its output, so that it does not block."""
        self.seen()
        return self.process.poll() is not None

    def as_before(self) -> bool:
        """Return True if the terminal has its original settings."""
        return bool(termios.tcgetattr(self.terminal) == self.before)


@contextlib.contextmanager
def on_terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[OnTerminal]:
    """Run a program on a wide terminal, and kill it at the end."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    os.set_blocking(controller, False)
    before = termios.tcgetattr(terminal)
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
    )
    try:
        yield OnTerminal(process, controller, terminal, before)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(controller)
