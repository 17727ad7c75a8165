"""Topologies: Storm's words, for programs that send from task to task.

A topology is written with `TopologyBuilder`, `Spout`, `Bolt` or `BasicBolt`, and `Stream`.
"""

from __future__ import annotations

from tuplewire.grouping.grouping import (
    CustomStreamGrouping,
    DeclaredStream,
    Grouping,
    GroupingContext,
    Locality,
    fields,
    shuffle,
)
from tuplewire_topology.authoring.builder import TopologyBuilder
from tuplewire_topology.authoring.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from tuplewire_topology.authoring.component import BasicBolt, Bolt, FailedError, Spout, TopologyContext
from tuplewire_topology.authoring.description import Topology
from tuplewire_topology.authoring.hooks import TaskHook, WorkerContext, WorkerHook
from tuplewire_topology.authoring.tuples import DEFAULT_STREAM, Stream, Tuple
from tuplewire_topology.authoring.user_metrics import CounterMetric, HistogramMetric
from tuplewire_topology.authoring.windowed_bolt import WindowedBolt
from tuplewire_topology.authoring.windows import TupleWindow, Window

__all__ = [
    "DEFAULT_STREAM",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "CounterMetric",
    "CustomStreamGrouping",
    "DeclaredStream",
    "FailedError",
    "Grouping",
    "GroupingContext",
    "HistogramMetric",
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
    "fields",
    "shuffle",
]
