"""What several tests need: waiting for a condition, and watching for leaks."""

from helpers.waiting import eventually

__all__ = ["eventually"]
