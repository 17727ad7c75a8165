"""A benchmark process, started once, as a start takes longer than a trial, and controlled by its stdin."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
KEEP_BUFFERS = {"MALLOC_TRIM_THRESHOLD_": "16777216", "MALLOC_MMAP_THRESHOLD_": "33554432"}
"""As docs/how-to/tune.md advises. Otherwise the memory that glibc retains depends on the order of frees."""
_CPU_CLOCK = 2


class BenchError(Exception):
    """The benchmark cannot continue: a process failed, or messages were lost, duplicated or out of order."""


def parser_of(page: str | None) -> argparse.ArgumentParser:
    """Return the parser of a program's command line; its help is the docstring of the program."""
    return argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)


Verb = Callable[..., Mapping[str, Any] | None]


def serve(verbs: Mapping[str, Verb]) -> None:
    """Answer each request, a line of JSON, with one line, until standard input ends. Runs in the process."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(verbs[request.pop("verb")](**request) or {}), flush=True)


def cpu_seconds(process_id: int) -> float:
    """Return the CPU time of a process so far, user and system; see clock_getcpuclockid(3)."""
    return time.clock_gettime(~process_id << 3 | _CPU_CLOCK)


class Agent:
    """Another process, as its caller sees it: a function of this folder that calls serve(), or a command."""

    def __init__(self, role: Callable[..., None] | Sequence[str], *arguments: Any) -> None:
        if callable(role):
            self.name = f"{role.__module__}.{role.__name__}"
            script = str(HERE / "agent.py")
            role = [sys.executable, script, role.__module__, role.__name__, json.dumps(arguments)]
        else:
            self.name = " ".join(role[-3:])
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(role, stdin=pipe, stdout=pipe, env={**KEEP_BUFFERS, **os.environ})
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, verb: str, *, within: float = 60.0, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its answer; BenchError if the process exits or does not answer."""
        try:
            self._requests.write(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError as error:
            raise BenchError(f"{self.name} exited, see its messages above") from error
        if not select.select([self._answers], [], [], within)[0]:
            raise BenchError(f"{self.name} has not answered {verb!r} for {within:.0f} s")
        line = self._answers.readline()
        if not line:
            raise BenchError(f"{self.name} exited at {verb!r}, see its messages above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its standard input, so that it exits, and wait for it."""
        with self._process:
            self._requests.close()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()


if __name__ == "__main__":
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))
