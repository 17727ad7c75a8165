"""A stream of the Messaging service over `buf curl`: JSON on its standard input and output."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROTO = Path(__file__).resolve().parents[4] / "proto"


def options() -> argparse.Namespace:
    """Parse the command line: --address host:port or unix:///path, --tasks 1,2, and files for TLS."""
    parser = argparse.ArgumentParser()
    for name in ("address", "topology", "id", "ca", "cert", "key"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--tasks", type=lambda text: [int(task) for task in text.split(",")])
    parser.add_argument("--count", type=int)
    settings = parser.parse_args()
    settings.incarnation = time.time_ns()  # increases with every start
    return settings


class Conversation:
    """One stream, closed at the end of the block. EOFError if the other side closes it early."""

    def __init__(self, method: str, settings: argparse.Namespace) -> None:
        how = ["--protocol", "grpc", "--schema", str(PROTO), "--data", "@-"]
        scheme, host = "http", settings.address
        if settings.ca:
            how += ["--cacert", settings.ca, "--cert", settings.cert, "--key", settings.key]
            scheme = "https"
        else:
            how += ["--http2-prior-knowledge"]
        if host.startswith("unix://"):
            how += ["--unix-socket", host.removeprefix("unix://")]
            host = "localhost"
        url = f"{scheme}://{host}/tuplewire.v1.Messaging/{method}"
        self._curl = subprocess.Popen(
            ["buf", "curl", *how, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._heard = self._responses()

    def _responses(self) -> Iterator[dict[str, Any]]:
        """Split the output into responses: each one ends with a closing brace in the first column."""
        assert self._curl.stdout is not None
        lines: list[str] = []
        for line in self._curl.stdout:
            lines.append(line)
            if line == "}\n":
                yield json.loads("".join(lines))
                lines.clear()

    def say(self, **request: dict[str, Any]) -> None:
        """Write a request."""
        assert self._curl.stdin is not None
        self._curl.stdin.write(json.dumps(request) + "\n")
        self._curl.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Read a response."""
        try:
            return next(self._heard)
        except StopIteration:
            raise EOFError("the stream ended early; buf curl has printed the reason") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send a goodbye, and wait until the other side has closed the stream."""
        if error is None:
            self.say(goodbye={})
        else:
            self._curl.kill()
        self._curl.communicate()
