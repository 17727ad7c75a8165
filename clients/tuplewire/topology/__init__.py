"""Topologies: Storm's words, for programs that send from task to task.

A topology is written with `TopologyBuilder`, `Spout`, `Bolt` or `BasicBolt`, and `Stream`.
"""

from __future__ import annotations

from tuplewire.topology.builder import TopologyBuilder
from tuplewire.topology.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from tuplewire.topology.component import BasicBolt, Bolt, FailedError, Spout, TopologyContext
from tuplewire.topology.description import Topology
from tuplewire.topology.grouping import (
    CustomStreamGrouping,
    DeclaredStream,
    Grouping,
    GroupingContext,
    Locality,
    fields,
    shuffle,
)
from tuplewire.topology.tuples import DEFAULT_STREAM, Stream, Tuple
from tuplewire.topology.user_metrics import CounterMetric, HistogramMetric
from tuplewire.topology.windowed_bolt import WindowedBolt
from tuplewire.topology.windows import TupleWindow, Window

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
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "Tuple",
    "TupleWindow",
    "Window",
    "WindowedBolt",
    "fields",
    "shuffle",
]
