"""Lets Spark find the format `tuplewire` by itself: it imports every module whose name begins so."""

from __future__ import annotations

from tuplewire.spark.data_source import TuplewireDataSource as DefaultSource

__all__ = ["DefaultSource"]
