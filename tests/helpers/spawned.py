"""Functions for processes that a test spawns. Such a process imports them by name."""

from __future__ import annotations

from tuplewire_topology.authoring.component import TaskError


def fails() -> None:
    """Raise an error with a constructor that needs more than a message."""
    raise TaskError("bolt", 7, ValueError("no"))
