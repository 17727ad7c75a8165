"""Shared by the benches with Java programs: libraries from Maven, and the exit of a bench."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from agent import HERE, BenchError
from report import progress

BUILD = HERE.parents[2] / "build" / "bench"
"""The folder of libraries and classes, kept between runs."""
_SECONDS = 600.0
_LINES = 5


class NotHereError(Exception):
    """A bench cannot run on this machine; the message lists the missing programs."""


def free_ports(count: int) -> list[int]:
    """Return ports that are currently free, for programs that need fixed ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def java() -> str:
    """Return the command that runs Java 17 or newer; NotHereError if there is none."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else "java"
    if not shutil.which(command):
        raise NotHereError("no java is here: install Java 17 or newer, or set JAVA_HOME")
    return command


def libraries(pom: Path, *properties: str, only: Sequence[str] = ()) -> Path:
    """Return a folder with the jars of a pom, or `only` some; Maven downloads them once, or NotHereError."""
    place = BUILD / "-".join([pom.parent.name, pom.stem, *(each.partition("=")[2] for each in properties)])
    done = place / "complete"
    if done.exists() and done.read_text(encoding="utf-8") == pom.read_text(encoding="utf-8"):
        return place
    shutil.rmtree(place, ignore_errors=True)
    wanted = [f"-DincludeArtifactIds={','.join(only)}"] if only else []
    settings = [f"-D{each}" for each in properties]
    run_maven(pom, "dependency:copy-dependencies", f"-DoutputDirectory={place}", *wanted, *settings)
    done.write_text(pom.read_text(encoding="utf-8"), encoding="utf-8")
    return place


def run_maven(pom: Path, *arguments: str) -> None:
    """Run Maven on a pom; NotHereError with its last error lines if it fails."""
    if not shutil.which("mvn"):
        raise NotHereError("Maven (mvn) is not here: install it, with Java 17 or newer")
    command = ["mvn", "--batch-mode", "--no-transfer-progress", f"--file={pom}", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotHereError(f"Maven has not ended within {_SECONDS:.0f} s: {' '.join(command)}") from error
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if "ERROR" in line][:_LINES]
        raise NotHereError("\n".join([f"Maven could not do it: {' '.join(command)}", *said]))


def outcome(name: str, measure: Callable[[], str]) -> int:
    """Measure, and print the result, or the missing programs (0), or the error that stopped it (1)."""
    try:
        found = measure()
    except NotHereError as error:
        found, code = f"SKIPPED, nothing was measured: {error}", 0
    except BenchError as error:
        found, code = f"{name}: {error}", 1
    else:
        progress("")
        print(found)
        return 0
    progress("")
    print(found, file=sys.stderr)
    return code
