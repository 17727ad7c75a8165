"""The format `tuplewire` of Spark: source and sink, batch and streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from tuplewire.errors import ConfigError
from tuplewire.spark.options import sink_options, source_options
from tuplewire.spark.schema import READ_SCHEMA, check_read_schema, check_write_schema
from tuplewire.spark.shipped import Shipped

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tuplewire.spark.reader import TuplewireBatchReader, TuplewireStreamReader
    from tuplewire.spark.writer import TuplewireBatchWriter, TuplewireStreamWriter


class TuplewireDataSource(Shipped, DataSource):
    """`.format("tuplewire")`. Options: tuplewire.spark.options; columns: tuplewire.spark.schema.

    Every method raises ConfigError for options or columns that are wrong, before anything runs.
    """

    @classmethod
    def name(cls) -> str:
        """Return what .format() calls it."""
        return "tuplewire"

    def schema(self) -> str:
        """Return the columns that are read."""
        return READ_SCHEMA

    def reader(self, schema: StructType) -> TuplewireBatchReader:
        """Return a reader of what is there."""
        from tuplewire.spark.reader import TuplewireBatchReader

        check_read_schema(schema)
        return TuplewireBatchReader(source_options(self.options))

    def streamReader(self, schema: StructType) -> TuplewireStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of what comes."""
        from tuplewire.spark.reader import TuplewireStreamReader

        check_read_schema(schema)
        return TuplewireStreamReader(source_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> TuplewireBatchWriter:  # noqa: FBT001 - Spark's
        """Return a writer of a whole DataFrame."""
        from tuplewire.spark.writer import TuplewireBatchWriter

        if overwrite:
            raise ConfigError("messages that were sent cannot be overwritten: use .mode('append')")
        options = sink_options(self.options)
        check_write_schema(schema, options.grouping)
        return TuplewireBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TuplewireStreamWriter:  # noqa: FBT001, N802
        """Return a writer of micro-batches."""
        from tuplewire.spark.writer import TuplewireStreamWriter

        if overwrite:
            raise ConfigError("messages that were sent cannot be replaced: use .outputMode('append')")
        options = sink_options(self.options)
        check_write_schema(schema, options.grouping)
        return TuplewireStreamWriter(options)
