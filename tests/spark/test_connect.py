"""The format `tuplewire` over Spark Connect."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CLIENT = Path(__file__).with_name("connect_client.py")
CLIENT_SECONDS = 200.0


@pytest.fixture
def remote(spark: SparkSession) -> Iterator[str]:
    """Let the shared session serve Spark Connect, and return where."""
    context: Any = spark.sparkContext
    packaged = context._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(packaged, "SparkConnectService$"), "MODULE$")
    service.start(context._jsc.sc())
    yield f"sc://127.0.0.1:{service.server().getPort()}"
    service.stop(getattr(service, "stop$default$1")(), getattr(service, "stop$default$2")())


@pytest.mark.timeout(300)
def test_source_sink_and_client(remote: str, launch: Any, tmp_path: Path) -> None:
    """A client without a JVM writes, sends in mapInArrow, streams and reads; all of it runs at the server."""
    with launch("spark", {0: [1, 2], 1: [3, 4]}) as running:
        address = running.endpoints[0].address
        client = [sys.executable, str(CLIENT), remote, address, str(tmp_path)]
        run = subprocess.run(client, check=True, timeout=CLIENT_SECONDS, stdout=subprocess.PIPE, text=True)
    assert run.stdout.split() == ["1000"]
