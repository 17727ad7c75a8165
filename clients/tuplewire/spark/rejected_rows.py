"""Rows that a query rejects, for the sink: each is sent to its task again, or to the dead-letter task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire.spark.data_source import HEADERS_TYPE
from tuplewire.values.dead_letters import COUNT, DEAD, REASON, REJECTED, SOURCE, TASK, TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


def rejected(
    rows: DataFrame, *, dead_letter_task: int, limit: int = 5, reason: str | Column = ""
) -> DataFrame:
    """Return rows that a query rejects, to be written with the format `tuplewire`.

    Each row is sent to its task again, after the queued messages, with the header `tuplewire-rejected`. After
    `limit` rejections, it is sent to the dead-letter task, like messages that consumers reject. See
    docs/how-to/reject.md.

    Args:
        rows: Rows of the source, with the option includeHeaders. Other columns are ignored.
        dead_letter_task: The workers' dead_letter_task, which `tuplewire dead-letters` reads.
        limit: The number of rejections after which a message is a dead letter.
        reason: The reason for operators: a text for all rows, or a column.

    Raises:
        ConfigError: The rows lack a column, or the limit is less than 1.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for them

    columns = ("task", "message", "source", "key", "headers")
    if missing := [name for name in columns if name not in rows.columns]:
        raise ConfigError(
            f"rows to reject lack {', '.join(missing)}: read them with includeHeaders=true, and keep all"
        )
    if limit < 1:
        raise ConfigError(f"limit is {limit}: a message is rejected once at least")
    headers = F.coalesce("headers", F.array().cast(HEADERS_TYPE))

    def pair(name: str, value: Column) -> Column:
        return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    counts = F.filter(headers, lambda each: each["key"] == REJECTED)
    before = F.try_element_at(F.transform(counts, lambda each: each["value"].cast("string")), F.lit(1))
    count = F.coalesce(before.cast("int"), F.lit(0)) + 1
    others = F.filter(headers, lambda each: (each["key"] != REJECTED) & ~each["key"].startswith(DEAD))
    told = F.array(
        pair(REASON, F.lit(reason) if isinstance(reason, str) else reason),
        pair(SOURCE, F.col("source")),
        pair(TASK, F.col("task")),
        pair(COUNT, count),
        pair(TIME, F.date_format(F.current_timestamp(), _ISO)),
    )
    dead = count >= limit
    more = F.when(dead, F.filter(told, lambda each: each["value"].isNotNull()))
    return rows.select(
        F.when(dead, F.lit(dead_letter_task)).otherwise(F.col("task")).cast("int").alias("task"),
        "message",
        "key",
        F.concat(others, more.otherwise(F.array(pair(REJECTED, count)))).alias("headers"),
    )
