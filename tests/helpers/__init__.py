"""Helpers for several tests, such as waiting for a condition."""

from tuplewire_service.testing import eventually

__all__ = ["eventually"]
