"""Storm's RollingTopWords: a count that emits on ticks, followed by a ranking that emits on ticks."""

from __future__ import annotations

from collections import Counter

from tuplewire_topology import BasicBolt, BasicOutputCollector, Spout, Topology, TopologyBuilder, Tuple

OMEGAS = 1501
_OTHERS = 1000


class Words(Spout):
    """Emits many words once, and "omega" more often than any other."""

    outputs = ("word",)

    def __init__(self) -> None:
        self.left = [f"word-{number}" for number in range(_OTHERS)] + ["omega"] * OMEGAS

    def next_tuple(self) -> None:
        if self.left:
            self.collector.emit([self.left.pop()])

    @property
    def exhausted(self) -> bool:
        return not self.left


class RollingCount(BasicBolt):
    """Emits its counts on a tick, "omega" last."""

    outputs = ("word", "count")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message.is_tick:
            for word, count in sorted(self.counts.items(), key=lambda pair: pair[1]):
                collector.emit([word, count])
            self.counts.clear()
        else:
            self.counts[message["word"]] += 1


class Ranking(BasicBolt):
    """Emits the word with the highest count on a tick, or an empty word if there are no counts."""

    outputs = ("word", "count")

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        if message.is_tick:
            collector.emit(max(self.totals.items(), key=lambda pair: pair[1], default=("", 0)))
        else:
            self.totals[message["word"]] += message["count"]


def rolling_top_words() -> Topology:
    """Return the topology. With only the last tick, "ranking" must emit just ("omega", OMEGAS)."""
    builder = TopologyBuilder()
    builder.set_spout("words", Words())
    count = builder.set_bolt("count", RollingCount(), 2).fields_grouping("words", "word")
    ranking = builder.set_bolt("ranking", Ranking()).global_grouping("count")
    for bolt in (count, ranking):
        bolt.add_configuration("topology.tick.tuple.freq.secs", 3600)
    return builder.create_topology()
