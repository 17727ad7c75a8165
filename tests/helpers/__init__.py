"""What several tests need: waiting for a condition, and watching for leaks."""

from tuplewire_service.testing import eventually

__all__ = ["eventually"]
