"""Modules that an import must not load, because many processes pay for it."""

from __future__ import annotations

import json
import subprocess
import sys


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return set(json.loads(run.stdout))


def test_import_is_light() -> None:
    """`import tuplewire` loads neither the service nor an optional package."""
    heavy = {
        "tuplewire_service",
        "opentelemetry",
        "pyspark_tuplewire",
        "pyspark",
        "zmq",
        "prometheus_client",
        "rich",
        "pyarrow",
        "numpy",
        "pandas",
    }
    assert not heavy & loaded_by("import tuplewire")


def test_topology_is_light() -> None:
    """Topologies are defined, and tuples are decoded, without gRPC and numpy."""
    assert not {"grpc", "google.protobuf", "numpy"} & loaded_by(
        "from tuplewire_topology.serial.serializer import TupleSerializer\nimport tuplewire_topology"
    )


def test_command_is_light() -> None:
    """The command loads packages for Spark and for terminal output only when it uses them."""
    heavy = {"pyspark", "pyarrow", "pandas", "rich", "opentelemetry"}
    assert not heavy & loaded_by("import tuplewire_service.command.cli")


def test_finding_the_format_is_light() -> None:
    """Spark imports the format in every planning process, and most of them send no messages."""
    assert not {"grpc", "pyarrow", "pandas"} & loaded_by("import pyspark_tuplewire")


def test_rows_need_no_pandas() -> None:
    """Rows are read and written without pandas, which is slow to load in Spark's new processes."""
    assert "pandas" not in loaded_by(
        "import tuplewire.spark.reader, tuplewire.spark.writer\n"
        "from tuplewire import TaskGroup, TaskMessageBatch\n"
        "from tuplewire.session.delivery import Delivery\n"
        "from tuplewire.spark.columns import read_batch\n"
        "groups = TaskGroup.of(1, [b'a', b'b']).accepted(5000), TaskGroup.of(1, [b'c'], 7)\n"
        "rows = read_batch([Delivery(1, groups[0]), Delivery(3, groups[1])], headers=True)\n"
        "assert len(TaskMessageBatch.from_arrow(rows['task'], rows['message'])) == 3"
    )


def test_values_need_no_grpc() -> None:
    """A program that only builds batches does not load gRPC."""
    assert not {"grpc", "google.protobuf"} & loaded_by("from tuplewire import TaskMessageBatch")
