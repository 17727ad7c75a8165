"""Spark's format `tuplewire`, source and sink, batch and streaming, its columns, and rejected rows.

Used by Spark, which imports this in each process that plans a query; it loads neither gRPC nor Arrow. Owns
the checks of options and columns. Not thread-safe. Design: docs/design/readers.md, docs/design/sinks.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire.spark.data_source_api import DataSource, DataSourceStreamReader, OldStreamReader
from tuplewire.spark.features import check_stream_options, has_admission_control
from tuplewire.spark.options import GroupingName, SinkOptions, sink_options, source_options
from tuplewire.spark.version_check import VersionChecked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from tuplewire.spark.reader import TuplewireBatchReader, TuplewireStreamReader
    from tuplewire.spark.writer import TuplewireBatchWriter, TuplewireStreamWriter

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
"""The type of the column `headers`, as in Spark's Kafka connector. Null: a message without headers."""

_ISO_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_TASK_TYPES = ("tinyint", "smallint", "int", "bigint")
_SENT_KEY_TYPES = ("string", "binary")
_OPTIONAL = {"key": _SENT_KEY_TYPES, "headers": (HEADERS_TYPE,)}


def read_schema(*, headers: bool) -> StructType:
    """Return the columns of a read. They are types, because session settings change the meaning of DDL.

    The source is null if the sender was not a task. The sequence counts the task's messages at its worker,
    from 1. The timestamp is the time at which the sender accepted the message, in whole milliseconds of its
    clock. If the sender reports no time, the first worker's time is used. It is the same in every attempt, or
    null if unknown. The key is null for a message without a key.
    """
    from pyspark.sql import types as T  # noqa: N812 - as Spark's users write it

    schema = T.StructType()
    schema.add("task", T.IntegerType()).add("message", T.BinaryType()).add("source", T.IntegerType())
    schema.add("sequence", T.LongType()).add("timestamp", T.TimestampType()).add("key", T.BinaryType())
    if headers:
        header = T.StructType().add("key", T.StringType()).add("value", T.BinaryType())
        schema.add("headers", T.ArrayType(header))
    return schema


def _format_schema(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def check_read_schema(schema: StructType, *, headers: bool = False) -> None:
    """Raise ConfigError for a schema other than read_schema()."""
    actual, expected = _format_schema(schema), _format_schema(read_schema(headers=headers))
    if actual != expected:
        raise ConfigError(
            f"the format tuplewire has the columns {expected}, not {actual}: leave .schema() out, and "
            "convert afterwards, as in .selectExpr('cast(message as string)')"
        )


def check_write_schema(schema: StructType, grouping: GroupingName) -> None:
    """Raise ConfigError unless the columns and their types fit the grouping."""
    wanted: dict[str, tuple[str, ...]] = {"message": ("binary", "string")}
    if grouping is GroupingName.DIRECT:
        wanted["task"] = _TASK_TYPES
    elif grouping is GroupingName.FIELDS:
        wanted["key"] = (*_TASK_TYPES, *_SENT_KEY_TYPES)
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kinds in wanted.items():
        if found.get(name) not in kinds:
            problem = f"is {found[name]}" if name in found else "is missing"
            raise ConfigError(f"column {name} {problem}: {_needs(grouping, wanted)}")
    for name, kinds in _OPTIONAL.items():
        if name in found and found[name] not in wanted.get(name, kinds):
            raise ConfigError(f"column {name} is {found[name]}: it may be {' or '.join(kinds)}, or missing")
    if extra := sorted(found.keys() - wanted.keys() - _OPTIONAL.keys()):
        raise ConfigError(f"column {', '.join(extra)} has no place in a message: {_needs(grouping, wanted)}")


def _needs(grouping: GroupingName, wanted: dict[str, tuple[str, ...]]) -> str:
    columns = " and ".join(f"{name} ({' or '.join(kinds)})" for name, kinds in sorted(wanted.items()))
    optional = " and ".join(name for name in _OPTIONAL if name not in wanted)
    return (
        f"with grouping={grouping} the rows to write have {columns}, and may have {optional}; select these, "
        "with cast where needed"
    )


class TuplewireDataSource(VersionChecked, DataSource):
    """`.format("tuplewire")`. Every method raises ConfigError for wrong options (options.py) or columns."""

    @classmethod
    def name(cls) -> str:
        return "tuplewire"

    def schema(self) -> StructType:
        return read_schema(headers=source_options(self.options).include_headers)

    def reader(self, schema: StructType) -> TuplewireBatchReader:
        """Return a reader of the messages that are queued now."""
        from tuplewire.spark.reader import TuplewireBatchReader

        options = source_options(self.options, streaming=False)
        check_read_schema(schema, headers=options.include_headers)
        return TuplewireBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        create_reader = partial(self._stream_reader, schema)
        return create_reader() if has_admission_control() else OldStreamReader(create_reader)

    def _stream_reader(self, schema: StructType) -> TuplewireStreamReader:
        from tuplewire.spark.reader import TuplewireStreamReader

        check_stream_options(self.options)
        options = source_options(self.options)
        check_read_schema(schema, headers=options.include_headers)
        return TuplewireStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> TuplewireBatchWriter:  # noqa: FBT001 - Spark's
        from tuplewire.spark.writer import TuplewireBatchWriter

        return TuplewireBatchWriter(self._sink_options(schema, overwrite, ".mode('append')"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TuplewireStreamWriter:  # noqa: FBT001, N802
        from tuplewire.spark.writer import TuplewireStreamWriter

        return TuplewireStreamWriter(self._sink_options(schema, overwrite, ".outputMode('append')"))

    def _sink_options(self, schema: StructType, overwrite: bool, append_mode: str) -> SinkOptions:  # noqa: FBT001
        if overwrite:
            raise ConfigError(f"messages that were sent cannot be overwritten: use {append_mode}")
        options = sink_options(self.options)
        check_write_schema(schema, options.grouping)
        return options


def reject_rows(
    rows: DataFrame, *, dead_letter_task: int, limit: int = 5, reason: str | Column = ""
) -> DataFrame:
    """Return rows that a query rejects, to be written with the format `tuplewire`.

    Each row is sent to its task again, after the queued messages, with the header `tuplewire-rejected`. After
    `limit` rejections, it is sent to the dead-letter task. See docs/how-to/reject.md.

    Args:
        rows: Rows of the source, with the option includeHeaders. Other columns are ignored.
        dead_letter_task: The workers' dead_letter_task, which `tuplewire dead-letters` reads.
        limit: The number of rejections after which a message is a dead letter.
        reason: The reason for operators: a text for all rows, or a column.

    Raises:
        ConfigError: The rows lack a column, or the limit is less than 1.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for them

    from tuplewire.values.dead_letters import COUNT, DEAD, REASON, REJECTED, SOURCE, TASK, TIME

    columns = ("task", "message", "source", "key", "headers")
    if missing := [name for name in columns if name not in rows.columns]:
        raise ConfigError(
            f"rows to reject lack {', '.join(missing)}: read them with includeHeaders=true, and keep all"
        )
    if limit < 1:
        raise ConfigError(f"limit must be at least 1, not {limit}")
    headers = F.coalesce("headers", F.array().cast(HEADERS_TYPE))

    def pair(name: str, value: Column) -> Column:
        return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    counts = F.filter(headers, lambda each: each["key"] == REJECTED)
    before = F.try_element_at(F.transform(counts, lambda each: each["value"].cast("string")), F.lit(1))
    count = F.coalesce(before.cast("int"), F.lit(0)) + 1
    others = F.filter(headers, lambda each: (each["key"] != REJECTED) & ~each["key"].startswith(DEAD))
    letter_headers = F.array(
        pair(REASON, F.lit(reason) if isinstance(reason, str) else reason),
        pair(SOURCE, F.col("source")),
        pair(TASK, F.col("task")),
        pair(COUNT, count),
        pair(TIME, F.date_format(F.current_timestamp(), _ISO_FORMAT)),
    )
    is_dead_letter = count >= limit
    letter_columns = F.when(is_dead_letter, F.filter(letter_headers, lambda each: each["value"].isNotNull()))
    return rows.select(
        F.when(is_dead_letter, F.lit(dead_letter_task)).otherwise(F.col("task")).cast("int").alias("task"),
        "message",
        "key",
        F.concat(others, letter_columns.otherwise(F.array(pair(REJECTED, count)))).alias("headers"),
    )
