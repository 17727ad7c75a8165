"""Makes Spark find the format `tuplewire`: Spark imports every module that is named `pyspark_*`."""

from tuplewire.spark.data_source import TuplewireDataSource as DefaultSource

__all__ = ["DefaultSource"]
