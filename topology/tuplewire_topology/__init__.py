"""Topologies of spouts and bolts, as in Storm, that send tuples from task to task.

A topology is written with `TopologyBuilder`, `Spout`, `Bolt` or `BasicBolt`, and `Stream`. The clusters that
run it are imported at their first use, because authors of components do not need gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tuplewire.grouping.grouping import Grouping, GroupingContext, Locality, fields, shuffle
from tuplewire_topology.authoring.builder import TopologyBuilder
from tuplewire_topology.authoring.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from tuplewire_topology.authoring.component import (
    BasicBolt,
    Bolt,
    FailedError,
    Spout,
    TaskHook,
    TopologyContext,
)
from tuplewire_topology.authoring.description import CustomStreamGrouping, Topology, WorkerContext, WorkerHook
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM, Stream, Tuple
from tuplewire_topology.authoring.user_metrics import CounterMetric, HistogramMetric
from tuplewire_topology.authoring.windows import TupleWindow, Window, WindowedBolt

if TYPE_CHECKING:
    from tuplewire_topology.clusters.cluster import DistributedCluster, LocalCluster, complete_topology

__all__ = [
    "DEFAULT_STREAM",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "CounterMetric",
    "CustomStreamGrouping",
    "DistributedCluster",
    "FailedError",
    "Grouping",
    "GroupingContext",
    "HistogramMetric",
    "LocalCluster",
    "Locality",
    "OutputCollector",
    "Spout",
    "SpoutOutputCollector",
    "Stream",
    "TaskHook",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "Tuple",
    "TupleWindow",
    "Window",
    "WindowedBolt",
    "WorkerContext",
    "WorkerHook",
    "complete_topology",
    "fields",
    "shuffle",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("tuplewire_topology.clusters.cluster"), name)
