"""Tuplewire inside Spark. Nothing here imports pyspark before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tuplewire.spark.client_handle import ClientHandle
    from tuplewire.spark.executors import membership

__all__ = ["ClientHandle", "membership", "register"]


def register(spark: SparkSession) -> None:
    """Make `.format("tuplewire")` known to a session, for reading and writing, batch and streaming.

    Only needed where Spark does not find it by itself: when the package has come by --py-files or
    addArtifact, and not by pip. Does no harm otherwise.
    """
    from tuplewire.spark.data_source import TuplewireDataSource

    spark.dataSource.register(TuplewireDataSource)


def __getattr__(name: str) -> Any:
    if name == "ClientHandle":
        from tuplewire.spark.client_handle import ClientHandle

        return ClientHandle
    if name == "membership":
        from tuplewire.spark.executors import membership

        return membership
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
