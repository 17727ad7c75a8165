"""Tuplewire inside Spark. Nothing here imports pyspark before it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tuplewire.spark.client_handle import ClientHandle
    from tuplewire.spark.executors import membership
    from tuplewire.spark.progress import lag
    from tuplewire.spark.rejected_rows import rejected
    from tuplewire.spark.slots import check_slots

__all__ = ["ClientHandle", "check_slots", "lag", "membership", "register", "rejected"]
_HOMES = {
    "ClientHandle": "tuplewire.spark.client_handle",
    "check_slots": "tuplewire.spark.slots",
    "lag": "tuplewire.spark.progress",
    "membership": "tuplewire.spark.executors",
    "rejected": "tuplewire.spark.rejected_rows",
}


def register(spark: SparkSession) -> None:
    """Make `.format("tuplewire")` known to a session and to the calling thread.

    Spark finds the format by itself where the package was installed by pip, but only in the program's first
    thread: call this in every other thread that reads or writes, and where the package has come by --py-files
    or addArtifact. It does no harm elsewhere, and logs `spark.other_python` where Spark runs another Python
    than this program. Raises NeedsSparkError with Spark 3.5.
    """
    from pyspark.errors import AnalysisException

    from tuplewire.spark.data_source import TuplewireDataSource
    from tuplewire.spark.releases import is_remote, use_in_this_thread

    if not is_remote(spark):
        use_in_this_thread(spark)
    try:
        spark.dataSource.register(TuplewireDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # as 4.0 says where it has found it by itself
            raise


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
