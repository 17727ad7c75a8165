"""docs/reference/wire.md: its conversations work unchanged, and its table lists every error."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.foreign_clients import GRPCLIB_VENV, client, generate
from helpers import eventually
from helpers.tools import ROOT, missing, ran, require_tool
from helpers.topology import ledger, workers_with

from tuplewire.processes.worker_processes import Endpoint
from tuplewire.wire import messaging_pb2

PAGE = (ROOT / "docs" / "reference" / "wire.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
CLIENTS = ("buf", "node", "stubs", "grpclib")
"""The client that each conversation needs, in the order of the page."""
TASK = 42


@pytest.fixture(scope="module")
def worker() -> Iterator[Endpoint]:
    """Run a worker as on the page, but at another port."""
    with workers_with([TASK], topology="default", flags=["--drain-seconds=0.5"]) as workers:
        yield workers.endpoints[0]


def interpreter(name: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a conversation, and its environment variables."""
    if name == "buf":
        buf = Path(require_tool("buf", "make install"))
        return ["bash", "-c"], {"PATH": f"{buf.parent}{os.pathsep}{os.environ['PATH']}"}
    if name == "node":
        node = client(name)
        return [*node.run, "-e"], node.environment
    if name == "stubs":
        return [sys.executable, "-c"], {}
    if not (GRPCLIB_VENV / "bin" / "protoc-gen-grpclib_python").exists():
        missing(f"{GRPCLIB_VENV} is not there; make deploy-tools makes it")
    generate(GRPCLIB_VENV / "bin", f"--python_out={folder}", f"--grpclib_python_out={folder}")
    # Tuplewire is next to grpclib, as in an environment with both.
    return [f"{GRPCLIB_VENV}/bin/python", "-c"], {"PYTHONPATH": f"{ROOT}/clients{os.pathsep}{folder}"}


@pytest.mark.parametrize(("block", "name"), list(zip(BLOCKS, CLIENTS, strict=True)), ids=CLIENTS)
def test_the_conversations_of_the_page_work(
    worker: Endpoint, block: tuple[str, str], name: str, tmp_path: Path
) -> None:
    """Each conversation sends two messages, receives them and acknowledges them."""
    command, variables = interpreter(name, tmp_path)
    port = worker.address.rpartition(":")[2]
    before = ledger(worker)
    run = ran(*command, block[1].replace("6700", port), cwd=ROOT, env={**os.environ, **variables})
    assert run.returncode == 0, run.stderr
    assert "helloworld" in run.stdout or "aGVsbG93b3JsZA==" in run.stdout
    eventually(lambda: not ledger(worker).pending, 10, "everything acknowledged")
    after = ledger(worker)
    assert (after.accepted - before.accepted, after.acknowledged - before.acknowledged) == (2, 2)


def test_every_error_is_in_the_table() -> None:
    """The table of the page contains every error that ends a stream."""
    rows = " ".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|"))
    frames = {"TOO_MANY_HOPS"}  # rejects messages, never a stream
    codes = {name.removeprefix("ERROR_CODE_") for name in dict(messaging_pb2.ErrorCode.items())} - {
        "UNSPECIFIED"
    }
    assert codes - set(re.findall(r"[A-Z_]{4,}", rows)) == frames
