"""Spark's classes for data sources as its newest release has them, on every release from 4.0 on.

Readers and writers are written against these. A class that a release lacks has a stand-in here, and where
Spark calls a stream's reader in its earlier way, EarlierStreamReader takes the calls. To import this raises
NeedsSparkError with Spark 3.5.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tuplewire.spark.releases import check_data_sources, check_stream_options, has_admission_control
from tuplewire.spark.shipped import Shipped

check_data_sources()

from pyspark.sql.datasource import (  # noqa: E402 - only where there is such a module
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "EarlierStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
    "stream_reader",
]

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[misc, no-redef]
        """Gets record batches, of which it makes messages: for those, 4.0 looks at the second base alone."""


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2; only EarlierStreamReader makes any

    class ReadLimit:  # type: ignore[no-redef]
        """How much a micro-batch may read."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """All that is there."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """At most so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow(ABC):  # type: ignore[no-redef]
        """A reader that stops where its source ended at the start."""

        @abstractmethod
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Read no further from now on than what is there."""


def stream_reader(
    make: Callable[[], DataSourceStreamReader], options: Mapping[str, str]
) -> DataSourceStreamReader:
    """Return a stream's reader, as this Spark calls one."""
    return make() if has_admission_control() else EarlierStreamReader(make, options)


class EarlierStreamReader(Shipped, DataSourceStreamReader):
    """A stream's reader as Spark 4.0 and 4.1 call one, in front of one for 4.2.

    These do not say where a micro-batch begins, nor how much it may read. It begins where the last one that
    was planned has ended; after a restart, Spark first plans the last one of its offset log, from its end to
    its end. With availableNow Spark asks once, before that, for the end of all that is there.

    make: makes the reader, and may raise: at Spark's first question, as an error before that is hidden by one
    of Spark's own. options: of the query; NeedsSparkError for those that Spark cannot heed.
    """

    def __init__(self, make: Callable[[], DataSourceStreamReader], options: Mapping[str, str]) -> None:
        self._make = make
        self._options = dict(options)
        self._planned: dict[str, Any] | None = None
        self._asked_from: dict[str, Any] | None = None

    @cached_property
    def _reader(self) -> DataSourceStreamReader:
        check_stream_options(self._options)
        return self._make()

    @cached_property
    def _initial(self) -> dict[str, Any]:
        return self._reader.initialOffset()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the same at each call: Spark may have got an end from it before it asks."""
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Return the end of all that is there."""
        return self._latest(self._initial if self._planned is None else self._planned)

    def _latest(self, start: dict[str, Any]) -> dict[str, Any]:
        self._asked_from = start
        return self._reader.latestOffset(start, ReadAllAvailable())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return those of a micro-batch.

        Raises what the reader's latestOffset() does for a start that it was not asked about: so that a loss
        is noticed after a restart.
        """
        if start not in (end, self._asked_from):
            self._latest(start)
        self._planned = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]] | Iterator[pa.RecordBatch]:
        """Return the messages of a partition; in a Spark task."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Hand it on."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Stop the reader, if there is one."""
        if "_reader" in vars(self):
            self._reader.stop()
