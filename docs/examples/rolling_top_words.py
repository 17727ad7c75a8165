"""The top words of the last seconds: a topology, as in Storm's starter.

`Words` emits 1,000 words per second for six seconds. `RollingCount` counts each word over the last
slots of a window. Equal words are always sent to the same task. `Top` merges the counts of all tasks
and emits the top three.
Counts and rankings are emitted on ticks, and once more when the spout has no more words.

Run it in the root of a clone: python docs/examples/rolling_top_words.py
"""

import random
import time
from collections import Counter, deque

from tuplewire_topology import BasicBolt, Spout, TopologyBuilder
from tuplewire_topology.clusters.cluster import cluster_of

COMMON = ["storm", "spark", "tuple", "bolt", "spout"]
WORDS, PER_SECOND = 6_000, 1_000
SLOTS = 3  # a window of three ticks
TICK = "topology.tick.tuple.freq.secs", 1


class Words(Spout):
    outputs = ("word",)

    def open(self, conf, context, collector):
        super().open(conf, context, collector)
        self.random = random.Random(7)
        self.started, self.sent = time.monotonic(), 0

    def next_tuple(self):
        due = min(WORDS, int(PER_SECOND * (time.monotonic() - self.started)))
        for word in self.random.choices(COMMON, weights=[16, 8, 4, 2, 1], k=due - self.sent):
            self.collector.emit([word])
        self.sent = due

    @property
    def exhausted(self):
        return self.sent == WORDS


class RollingCount(BasicBolt):
    outputs = ("word", "count")

    def prepare(self, conf, context):
        self.slots = deque([Counter()], maxlen=SLOTS)

    def execute(self, message, collector):
        if not message.is_tick:
            self.slots[-1][message["word"]] += 1
            return
        for word, count in sum(self.slots, Counter()).items():
            collector.emit([word, count])
        self.slots.append(Counter())  # the oldest slot falls out


class Top(BasicBolt):
    outputs = ("ranking",)

    def prepare(self, conf, context):
        self.counts = Counter()

    def execute(self, message, collector):
        if not message.is_tick:
            self.counts[message["word"]] = message["count"]
        elif self.counts:  # the first tick may arrive before the first counts
            collector.emit([self.counts.most_common(3)])


builder = TopologyBuilder()
builder.set_spout("words", Words())
builder.set_bolt("count", RollingCount(), 2).fields_grouping("words", "word").add_configuration(*TICK)
builder.set_bolt("top", Top()).global_grouping("count").add_configuration(*TICK)

if __name__ == "__main__":
    conf = {"topology.workers": 2}
    with cluster_of(conf) as cluster:
        captured = cluster.submit("top-words", conf, builder.create_topology()).finish()
        for (ranking,) in captured.tuples("top"):
            print(", ".join(f"{word} {count}" for word, count in ranking))
