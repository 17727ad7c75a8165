"""Starts the client programs in foreign/, each built on a different gRPC library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from helpers.tools import ROOT, missing, ran, require_tool
from helpers.topology import TOPOLOGY

FOREIGN = ROOT / "tests" / "deploy" / "foreign"
NODE_MODULES = ROOT / "build" / "npm" / "node_modules"
GRPCLIB_VENV = ROOT / "build" / "grpclib-venv"
_END_SECONDS = 240.0
_BUILD_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Client:
    """The command of a client's programs. `program` is a pattern, filled in with `send` or `recv`."""

    run: list[str]
    program: str = "{}"
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def client(name: str) -> Client:
    """Return the client for node, go, java or rust; call helpers.tools.missing() without its library."""
    if name == "node":
        node = require_tool("node", "the Debian package nodejs")
        if not (NODE_MODULES / "@grpc" / "grpc-js").is_dir():
            missing(f"{NODE_MODULES} has no @grpc/grpc-js; make deploy-tools installs it")
        return Client([node], f"{FOREIGN}/node/{{}}.js", {**os.environ, "NODE_PATH": str(NODE_MODULES)})
    if name == "go":
        return Client([built_with_go()])
    if name == "java":
        java = require_tool("java", "the Debian package default-jdk-headless")
        return Client([java, "-cp", built_with_maven(), "Client"])
    return Client([built_with_cargo()])


def protoc() -> Path:
    """Return a program named protoc: grpcio-tools provides one for Python and for other plug-ins."""
    if not (GRPCLIB_VENV / "bin" / "python").exists():
        missing(f"{GRPCLIB_VENV} is not there; make deploy-tools makes it")
    return FOREIGN / "protoc"


def generate(plugins: Path, *flags: str) -> None:
    """Run protoc on every file of proto/, with the plug-ins of a directory."""
    proto = ROOT / "proto"
    subprocess.run(
        [protoc(), f"-I{proto}", *flags, *sorted(proto.rglob("*.proto"))],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{plugins}{os.pathsep}{os.environ['PATH']}"},
        check=True,
        timeout=_END_SECONDS,
    )


@cache
def built_with_go() -> str:
    """Generate code from the unchanged proto/ with protoc's plug-ins for Go, and compile the programs."""
    go = shutil.which("go") or shutil.which("go", path=ROOT / "build" / "go" / "bin")
    if go is None:
        missing("go is missing; make deploy-tools installs it")
    directory = ROOT / "build" / "foreign-go"
    shutil.copytree(FOREIGN / "go", directory, dirs_exist_ok=True)
    build = partial(subprocess.run, cwd=directory, timeout=_BUILD_SECONDS)
    plugins = (
        "google.golang.org/protobuf/cmd/protoc-gen-go",
        "google.golang.org/grpc/cmd/protoc-gen-go-grpc",
    )
    offline = {**os.environ, "GOPROXY": "off"}
    if build([go, "build", "-o", "bin/", *plugins], env=offline, check=False).returncode:
        missing("Go's modules are not there; make deploy-tools downloads them")
    generate(
        directory / "bin",
        *(
            f"--go{kind}_{word}"
            for kind in ("", "-grpc")
            for word in (f"out={directory}", "opt=paths=source_relative")
        ),
    )
    build([go, "vet", "./..."], env=offline, check=True)
    build([go, "build", "-o", "bin/client", "."], env=offline, check=True)
    return str(directory / "bin" / "client")


@cache
def built_with_maven() -> str:
    """Generate code from the unchanged proto/ with Maven, and compile the program; return its class path."""
    require_tool("javac", "the Debian package default-jdk-headless")
    maven = require_tool("mvn", "the Debian package maven")
    how = ("--offline", "--quiet", "--batch-mode", f"--file={FOREIGN}/java/pom.xml")
    goals = ("compile", "dependency:copy-dependencies", "-DincludeScope=runtime")
    done = ran(maven, *how, *goals, seconds=_BUILD_SECONDS)
    if "in offline mode" in done.stdout:
        missing("Maven's libraries are not there; make deploy-tools downloads them")
    assert done.returncode == 0, done.stdout + done.stderr
    built = ROOT / "build" / "foreign-java"
    return f"{built}/classes:{built}/dependency/*"


@cache
def built_with_cargo() -> str:
    """Generate code from the unchanged proto/ with tonic, compile the program, and return its path."""
    cargo = require_tool("cargo", "rustup")
    protoc()  # build.rs runs it
    built = ROOT / "build" / "foreign-rust"
    flags = (f"--manifest-path={FOREIGN}/rust/Cargo.toml", f"--target-dir={built}")
    done = ran(cargo, "build", "--offline", "--quiet", *flags, seconds=_BUILD_SECONDS)
    if "--offline" in done.stderr:
        missing("Rust's crates are not there; make deploy-tools downloads and builds them")
    assert done.returncode == 0, done.stderr
    return str(built / "debug" / "client")


class Running:
    """A running program of a client, killed at the end of the block. `messages`: for or from each task."""

    def __init__(
        self,
        client: Client,
        role: str,
        address: str,
        tasks: Iterable[int],
        messages: int,
        flags: Iterable[str] = (),
        topology: str = TOPOLOGY,
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the program
        words = {
            "address": address,
            "topology": topology,
            "id": f"{role}-{'-'.join(map(str, tasks))}",
            "tasks": ",".join(map(str, tasks)),
            "count": str(messages),
        }
        self._process = subprocess.Popen(
            [
                *client.run,
                client.program.format(role),
                *(word for key, value in words.items() for word in (f"--{key}", value)),
                *flags,
            ],
            env=client.environment,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        if error is not None and (words := self.errors()):
            print(f"{self._process.args!r} has said:\n{words}")
        self._errors.close()

    @property
    def ended(self) -> bool:
        """True if the program has exited."""
        return self._process.poll() is not None

    def errors(self) -> str:
        """Return the program's standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def report(self) -> dict[str, Any]:
        """Wait until the program exits with 0, and return its report."""
        output, _ = self._process.communicate(timeout=_END_SECONDS)
        assert self._process.returncode == 0, self.errors()
        report: dict[str, Any] = json.loads(output)
        return report

    def failure(self) -> str:
        """Wait until the program exits with an error, and return its standard error."""
        self._process.wait(_END_SECONDS)
        assert self._process.returncode != 0
        return self.errors()
