"""The daemon that forks the Python workers of the tests' session: it imports once what all of them need."""

from __future__ import annotations

import importlib
import os

from pyspark.daemon import manager

# A process that forks must have one thread.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_MODULES = (
    "pandas",
    "pyarrow",
    "tuplewire.client",
    "tuplewire.spark.data_source",
    "tuplewire.spark.reader",
    "tuplewire.spark.writer",
    "tuplewire_topology.spark.member",
)

if __name__ == "__main__":
    for module in _MODULES:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "an import started a thread"  # noqa: PTH208
    manager()
