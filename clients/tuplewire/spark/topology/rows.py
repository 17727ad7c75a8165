"""A spout whose tuples are the rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError, TopologyError
from tuplewire.topology.collector import SpoutOutputCollector
from tuplewire.topology.component import Spout, TopologyContext
from tuplewire.topology.description import Topology

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_KEY = "tuplewire.spark.rows"
"""The setting under which a PySpark task hands its rows to the spout."""


class Rows(Spout):
    """Emits the rows of the DataFrame that run_topology gets; its fields are columns of that, by name.

    Each PySpark task has one task of it, which reads the rows that Spark gives to that PySpark task. A row
    that has failed is emitted again.
    """

    def __init__(self, *columns: str) -> None:
        if not columns:
            raise TopologyError("a Rows spout needs the names of the columns that it emits")
        self.outputs = columns

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Take the rows over; ConfigError where there are none, outside Spark."""
        super().open(conf, context, collector)
        if ROWS_KEY not in conf:
            raise ConfigError(
                "a Rows spout runs on Spark alone: give run_topology the DataFrame, as rows=..., "
                "or build the topology with another spout"
            )
        self.batches: Iterator[pa.RecordBatch] = conf[ROWS_KEY]
        self.rows: Iterator[tuple[Any, ...]] = iter(())
        self.ended = False
        self.emitted = 0
        self.on_the_way: dict[int, tuple[Any, ...]] = {}
        self.again: list[int] = []

    def next_tuple(self) -> None:
        """Emit a row that has failed, or the next one."""
        if self.again:
            number = self.again.pop()
            self.collector.emit(self.on_the_way[number], message_id=number)
            return
        while (row := next(self.rows, None)) is None:
            batch = next(self.batches, None)
            if batch is None:
                self.ended = True
                return
            columns = [batch.column(name).to_pylist() for name in self.outputs]
            self.rows = zip(*columns, strict=True)
        self.emitted += 1
        self.on_the_way[self.emitted] = row
        self.collector.emit(row, message_id=self.emitted)

    @property
    def exhausted(self) -> bool:
        """Whether all rows have been emitted, and none has failed since."""
        return self.ended and not self.again

    def ack(self, message_id: Any) -> None:
        """Forget a row that is processed."""
        del self.on_the_way[message_id]

    def fail(self, message_id: Any) -> None:
        """Emit a row again that has failed."""
        self.again.append(message_id)


def rows_spout(topology: Topology) -> str | None:
    """Return the component that emits rows of a DataFrame; TopologyError where there are several."""
    found = [each.id for each in topology.components.values() if isinstance(each.template, Rows)]
    if len(found) > 1:
        raise TopologyError(
            f"{' and '.join(map(repr, found))} are Rows spouts, and a topology on Spark has one DataFrame: "
            "unite them, with a column that tells them apart"
        )
    return found[0] if found else None
