"""A benchmark process, started once and controlled by requests on its standard input.

Starting Python and gRPC takes longer than a trial, so the processes stay idle between their turns.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
ANSWER_SECONDS = 60.0
KEEP_BUFFERS = {"MALLOC_TRIM_THRESHOLD_": "16777216", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""As docs/how-to/tune.md advises. Otherwise the memory that glibc retains depends on the order of frees."""


class BenchError(Exception):
    """The benchmark cannot continue: a process failed, or messages were lost, duplicated or out of order."""


Verbs = Mapping[str, Callable[..., dict[str, Any]]]


def serve(verbs: Verbs) -> None:
    """Answer each request, a line of JSON, with one line, until standard input ends. Runs in the process."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = verbs[request.pop("verb")](**request)
        print(json.dumps(answer), flush=True)


class Agent:
    """Another process that runs a role of a script in this folder. Used by the caller.

    Args:
        script: The name of the script.
        role: The first argument of the script.
        arguments: Further arguments of the script.
        runner: The command that runs the script; by default this Python.
        env: Additional environment variables.
    """

    def __init__(
        self,
        script: str,
        role: str,
        *arguments: object,
        runner: Sequence[str] = (sys.executable,),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = f"{role} ({script})"
        self._process = subprocess.Popen(
            [*runner, str(HERE / script), role, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**KEEP_BUFFERS, **os.environ, **(env or {})},
        )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, verb: str, *, within: float = ANSWER_SECONDS, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer; BenchError if the process exits or does not answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise BenchError(f"{self.name} exited, see its messages above") from error
        if not select.select([self._process.stdout], [], [], within)[0]:
            raise BenchError(f"{self.name} has not answered {verb!r} for {within:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self.name} exited at {verb!r}, see its messages above")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its standard input, so that it exits, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
