"""Topologies on Spark: `run_topology`, `submit_topology`, and `Rows`, a spout for the rows of a DataFrame."""

from __future__ import annotations

from tuplewire_topology.spark.rows import FailedRows, Rows
from tuplewire_topology.spark.submit import run_topology, submit_topology
from tuplewire_topology.spark.topology import JobError, SparkTopology, TopologyProgress, TopologyResult

__all__ = [
    "FailedRows",
    "JobError",
    "Rows",
    "SparkTopology",
    "TopologyProgress",
    "TopologyResult",
    "run_topology",
    "submit_topology",
]
