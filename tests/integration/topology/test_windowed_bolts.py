"""Bolts that work on windows of tuples, in running topologies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tuplewire.errors import TopologyError
from tuplewire_topology import Stream, Topology, TopologyBuilder, TupleWindow, Window, WindowedBolt
from tuplewire_topology.clusters.capture import FeederSpout, FixedTupleSpout
from tuplewire_topology.clusters.cluster import LocalCluster

SECONDS = 30.0


class Sums(WindowedBolt):
    """Emits the sum and the end of each window."""

    outputs = (Stream("sum", "end"), Stream("number", "at", name="late"))

    def __init__(self, window: Window) -> None:
        self.window = window

    def execute_window(self, window: TupleWindow) -> None:
        self.collector.emit([sum(each["number"] for each in window), window.end])


class Numbers(FixedTupleSpout):
    """Emits given numbers with their timestamps."""

    outputs = ("number", "at")


def topology_of(rows: list[list[Any]], window: Window) -> Topology:
    """Return a topology that adds up the numbers of each window."""
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(rows))
    builder.set_bolt("sums", Sums(window)).global_grouping("numbers")
    return builder.create_topology()


COUNTED = [[number, 0.0] for number in range(10)]


def test_by_count() -> None:
    """Windows of four over ten numbers: two full windows, and a last one when the topology ends."""
    topology = topology_of(COUNTED, Window.count(4, 4))
    with LocalCluster() as cluster:
        sums = cluster.submit("counted", {"topology.workers": 2}, topology).finish(SECONDS).tuples("sums")
    assert [values[0] for values in sums] == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7, 6 + 7 + 8 + 9]


def test_by_a_time_of_their_own() -> None:
    """Windows of ten seconds by the tuples' time: tuples beyond the lag go to the stream of late tuples."""
    rows = [[1, 1.0], [2, 9.0], [4, 13.0], [8, 8.5], [16, 31.0], [32, 9.5], [64, 44.0]]
    window = Window.seconds(10, timestamp="at", lag=5, late="late")
    with LocalCluster() as cluster:
        captured = cluster.submit("timed", {}, topology_of(rows, window)).finish(SECONDS)
        assert captured.tuples("sums") == [(11, 10.0), (4, 20.0), (16, 40.0), (64, 50.0)]
        assert captured.tuples("sums", "late") == [(32, 9.5)]


def test_by_arrival() -> None:
    """A window of three seconds is executed each second, by the cluster's time."""
    feeder = FeederSpout(["number", "at"])
    builder = TopologyBuilder()
    builder.set_spout("numbers", feeder)
    builder.set_bolt("sums", Sums(Window.seconds(3, 1))).global_grouping("numbers")
    with LocalCluster(simulated_time=True) as cluster:
        running = cluster.submit("arriving", {}, builder.create_topology())
        for number in (1, 2, 4, 8):
            feeder.feed([number, 0.0])
            running.wait(SECONDS)
            cluster.advance(1)
            running.wait(SECONDS)
        feeder.feed([16, 0.0])
        sums = [values[0] for values in running.finish(SECONDS).tuples("sums")]
    assert sums == [1, 1 + 2, 1 + 2 + 4, 2 + 4 + 8, 4 + 8 + 16]


def test_a_bolt_without_windows_is_refused() -> None:
    """A WindowedBolt without windows is refused by name when the topology is built."""

    class Forgotten(WindowedBolt):
        def execute_window(self, window: TupleWindow) -> None:
            """Do nothing."""

    with pytest.raises(TopologyError, match=r"bolt 'sums' is a WindowedBolt without windows: set window"):
        TopologyBuilder().set_bolt("sums", Forgotten())


def test_configuration_is_kept() -> None:
    """A windowed bolt's own tick setting overrides the topology's setting."""
    topology = topology_of(COUNTED, Window.seconds(2))
    configuration: Mapping[str, Any] = topology.component("sums").configuration
    assert configuration["topology.tick.tuple.freq.secs"] == 2
