"""A process of a campaign, which the campaign can stop, kill and restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

_KILLED_SECONDS = 30.0
_FOLDERS = tuple(map(str, Path(__file__).parents[1:3]))


def environment() -> dict[str, str]:
    """Return the environment in which a process finds the modules of campaigns."""
    path = os.pathsep.join(filter(None, (*_FOLDERS, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


class Program:
    """A process of a module, across restarts; each start adds its own journal to the configuration."""

    _process: subprocess.Popen[bytes]

    def __init__(
        self,
        module: str,
        name: str,
        config: dict[str, Any],
        directory: Path,
        entered: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name = name
        self._module = module
        self._config = config
        self._directory = directory
        self._entered = entered
        self._lives: list[Path] = []
        self._must_end = False
        self.start()

    def next_config(self) -> dict[str, Any]:
        """Return the configuration of the next start."""
        life = f"{self.name}.{len(self._lives) + 1}"
        self._lives.append(self._directory / f"{life}.jsonl")
        return {**self._config, "name": life, "journal": str(self._lives[-1])}

    def start(self) -> None:
        """Start the process, or start it again."""
        config = self.next_config()
        with (self._directory / f"{config['name']}.log").open("wb") as log, self._entered():
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(),
                # Ctrl-C is for the run; this process then exits with its standard input.
                start_new_session=True,
            )
        self._must_end = False

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._must_end = True
        self._process.kill()
        self.end(_KILLED_SECONDS)

    def begin_end(self) -> None:
        """Let the process finish, and do not wait."""
        self._must_end = True
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self, timeout: float) -> int:
        """Wait until the process has finished and return its exit code; kill it after the timeout."""
        self.begin_end()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._process.wait()

    @property
    def ended(self) -> bool:
        """True if the process has exited unexpectedly."""
        return self._process.poll() is not None and not self._must_end

    def journals(self) -> list[Path]:
        """Return the journals of all starts; a process that was killed during startup has no journal."""
        return [file for file in self._lives if file.exists()]
