"""Tuplewire inside Spark. Modules import pyspark only when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tuplewire.spark.client_handle import ClientHandle
    from tuplewire.spark.data_source import reject_rows
    from tuplewire.spark.executors import check_slots, membership
    from tuplewire.spark.offsets import lag

__all__ = ["ClientHandle", "check_slots", "lag", "membership", "register", "reject_rows"]
_LAZY_IMPORTS = {
    "ClientHandle": "tuplewire.spark.client_handle",
    "check_slots": "tuplewire.spark.executors",
    "lag": "tuplewire.spark.offsets",
    "membership": "tuplewire.spark.executors",
    "reject_rows": "tuplewire.spark.data_source",
}


def register(spark: SparkSession) -> None:
    """Register `.format("tuplewire")` in a session, and for the calling thread.

    Spark finds the format automatically if pip installed the package, but only in the program's first thread.
    Call this in every other thread that reads or writes, and if the package was added by --py-files or
    addArtifact. A call that is not needed does no harm. Logs `spark.python_mismatch` if Spark runs another
    Python than this program.

    Raises:
        UnsupportedSparkVersionError: The installed Spark is 3.5.

    Example:
        >>> tuplewire.spark.register(spark)
        >>> stream = spark.readStream.format("tuplewire").option("tasks", "0-9").load()
        >>> query = stream.select("task", "message").writeStream.format("console").start()
        >>> frame.select("task", "message").write.format("tuplewire").mode("append").save()
    """
    from pyspark.errors import AnalysisException

    from tuplewire.spark.data_source import TuplewireDataSource
    from tuplewire.spark.features import activate_session, is_remote

    if not is_remote(spark):
        activate_session(spark)
    try:
        spark.dataSource.register(TuplewireDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # 4.0, which has found it
            raise


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(import_module(_LAZY_IMPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
