"""Source, sink, client and topologies over Spark Connect, which has no SparkContext."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.tools import missing
from pyspark.sql import SparkSession

from tuplewire.processes.worker_processes import WorkerProcesses

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

CLIENT = Path(__file__).with_name("connect_client.py")
PROGRAM = Path(__file__).with_name("connect_program.py")
CLIENT_SECONDS = 200.0


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> Iterator[str]:
    """Serve Spark Connect from the shared session, and yield its address."""
    if find_spec("grpc_status") is None:
        missing("Spark Connect is missing; the extra `dev` has pyspark[connect]")
    context: Any = spark.sparkContext
    packaged = context._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(packaged, "SparkConnectService$"), "MODULE$")
    service.start(context._jsc.sc())
    yield f"sc://127.0.0.1:{service.server().getPort()}"
    service.stop(getattr(service, "stop$default$1")(), getattr(service, "stop$default$2")())


@pytest.mark.long
def test_source_sink_and_client(remote: str, launch: Any, tmp_path: Path) -> None:
    """A client without a JVM writes, sends in functions, streams and reads; everything runs on the server."""
    with launch("spark", {0: [1, 2, 6], 1: [3, 4, 5, 7]}) as running:
        address = running.endpoints[0].address
        client = [sys.executable, str(CLIENT), remote, address, str(tmp_path)]
        run = subprocess.run(client, check=True, timeout=CLIENT_SECONDS, stdout=subprocess.PIPE, text=True)
    assert run.stdout.split() == ["1000", "1000", "100", "100"]


def test_topologies(remote: str) -> None:
    """Rows, failures with tracebacks, stop and cancel work; unsupported calls raise errors with advice."""
    with WorkerProcesses(2, "connect", flags=["--drain-seconds=1"]) as local:
        program = [sys.executable, str(PROGRAM), remote, *(each.unix_address for each in local.endpoints)]
        ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=CLIENT_SECONDS)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["rows"] == list(range(1000))
    summary, traceback = found["failure"]
    assert "of 'pass': LookupError: no such number" in summary
    assert 'raise LookupError("no such number")' in traceback
    assert found["stop"] > 0
    assert "was cancelled" in found["cancel"]
    assert "7 PySpark tasks at the same time, and Spark has 6 slot(s)" in found["slots"]
    assert "name the workers by workers=" in found["membership"]
    assert "SPARK_CONNECT_MODE_ENABLED is set" in found["session"]
    for what in ("progress", "listen", "out of reach"):
        assert "reaches no worker" in found[what]
        assert "workers=[...]" in found[what]
