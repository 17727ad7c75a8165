"""Modules that an import must not load, because many processes pay for it."""

from __future__ import annotations

import json

import pytest
from helpers.tools import output_of

ROWS = """
import tuplewire.spark.reader, tuplewire.spark.writer
from tuplewire import TaskGroup, TaskMessageBatch
from tuplewire.spark.columns import read_batch
groups = TaskGroup.of(1, [b'a', b'b']).with_default_time(5000), TaskGroup.of(1, [b'c'], 7)
rows = read_batch(groups, 1, headers=True)
assert len(TaskMessageBatch.from_arrow(rows['task'], rows['message'])) == 3
"""
"""Pandas is slow to load in Spark's new processes."""
TUPLES = "from tuplewire_topology.serial.serializer import TupleSerializer; import tuplewire_topology"
OPTIONAL = "opentelemetry pyspark_tuplewire pyspark zmq prometheus_client rich pyarrow numpy pandas"


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        pytest.param("import tuplewire", f"tuplewire_service {OPTIONAL}", id="clients"),
        pytest.param("from tuplewire import TaskMessageBatch", "grpc google.protobuf", id="batches alone"),
        pytest.param(TUPLES, "grpc google.protobuf numpy", id="topologies and tuples"),
        pytest.param(
            "import tuplewire_service.command.cli",
            "google.protobuf pyspark pyarrow pandas rich opentelemetry",
            id="command",
        ),
        # Spark imports the format in every planning process, and most of them send no messages.
        pytest.param("import pyspark_tuplewire", "grpc google.protobuf pyarrow pandas", id="Spark's format"),
        pytest.param(ROWS, "pandas", id="rows"),
    ],
)
def test_import_is_light(statement: str, heavy: str) -> None:
    """A fresh interpreter that runs the statement does not load these modules."""
    loaded = output_of(f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")
    assert not set(heavy.split()) & set(json.loads(loaded))
