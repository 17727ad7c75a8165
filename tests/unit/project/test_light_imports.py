"""What an import must not load: programs start in it, and Spark starts many."""

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
    """A topology is written, and its tuples are read, without gRPC and without numpy."""
    assert not {"grpc", "google.protobuf", "numpy"} & loaded_by(
        "from tuplewire_topology.serial.serializer import TupleSerializer\nimport tuplewire_topology"
    )


def test_command_is_light() -> None:
    """A worker needs nothing of Spark, and draws nothing: such things are loaded where they are used."""
    heavy = {"pyspark", "pyarrow", "pandas", "rich", "opentelemetry"}
    assert not heavy & loaded_by("import tuplewire_service.command.cli")


def test_finding_the_format_is_light() -> None:
    """Spark imports the format in each of the processes in which it plans, most of which send nothing."""
    assert not {"grpc", "pyarrow", "pandas"} & loaded_by("import pyspark_tuplewire")


def test_rows_need_no_pandas() -> None:
    """Rows are read and written without pandas, which takes each new process of Spark long to load."""
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
    """A program that only builds batches does not pay for gRPC."""
    assert not {"grpc", "google.protobuf"} & loaded_by("from tuplewire import TaskMessageBatch")
