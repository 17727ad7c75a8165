"""Spark's classes for data sources as in its newest release, for every release from 4.0 on.

Used by the format, its readers and its writers. A class that a release lacks is defined here. If Spark calls
stream readers in the way of 4.0 and 4.1, OldStreamReader adapts the calls. The import raises
UnsupportedSparkVersionError with Spark 3.5. Owns the planned offset of an adapted reader. Not thread-safe.
Design: docs/design/readers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tuplewire.spark.features import unsupported
from tuplewire.spark.version_check import VersionChecked

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        InputPartition,
    )
except ModuleNotFoundError as error:
    raise unsupported(
        "the format tuplewire",
        "4.0",
        "use a ClientHandle in foreachBatch, foreachPartition or mapInArrow, or a newer Spark",
    ) from error

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DataSource",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "OldStreamReader",
    "ReadAllAvailable",
    "SupportsTriggerAvailableNow",
]

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[misc, no-redef]
        """A stream's writer of record batches. For batches, Spark 4.0 checks only the second base."""


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow
except ImportError:  # before 4.2, where only OldStreamReader passes a limit

    class ReadAllAvailable:  # type: ignore[no-redef]
        """No limit: all queued messages."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A reader that stops at the end that its source had at the start."""


class OldStreamReader(VersionChecked, DataSourceStreamReader):
    """A stream's reader for Spark 4.0 and 4.1, which calls a reader for 4.2.

    These releases pass neither the start of a micro-batch nor a limit. A micro-batch starts at the end of the
    last planned one. After a restart, Spark first plans the last micro-batch of its offset log, from its end
    to its end. With availableNow, Spark requests the end of all messages once, before that.

    create_reader: creates the reader. It is called at Spark's first call, because Spark hides earlier errors.
    """

    def __init__(self, create_reader: Callable[[], DataSourceStreamReader]) -> None:
        self._create_reader = create_reader
        self._initial: dict[str, Any] | None = None
        self._planned_end: dict[str, Any] | None = None
        self._last_start: dict[str, Any] | None = None

    @cached_property
    def _reader(self) -> Any:  # a TuplewireStreamReader; its module imports this one
        return self._create_reader()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the same offset at each call: Spark may have received an end based on it before."""
        self._initial = self._initial or self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        if self._planned_end is None:
            return dict(self._reader.number_end(self.initialOffset()))
        self._last_start = self._planned_end
        return dict(self._reader.latestOffset(self._planned_end, ReadAllAvailable()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch.

        For a start that the reader has not seen, call its latestOffset() first: it raises an error if
        messages were lost, also after a restart. Not for the initial offset: if Spark repeats the first
        micro-batch, the messages before a new initial offset may belong to it, and must not be discarded.
        """
        self._planned_end = end
        if start not in (end, self._last_start, self._initial):
            self._reader.latestOffset(start, ReadAllAvailable())
            end = self._reader.number_end(start, end)  # it may be from before Spark has passed this start
        return list(self._reader.partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(self._reader.read(partition))

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        """Stop the reader if it was created."""
        if "_reader" in vars(self):
            self._reader.stop()
