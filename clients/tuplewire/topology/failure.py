"""What spouts and bolts raise, with its place. Source: Storm's `IReportError` and `ReportError`."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.errors import TuplewireError
from tuplewire.topology.tuples import Tuple


class TaskError(TuplewireError):
    """A spout, bolt or grouping has raised, or reported, an error, which is the cause of this one.

    component, task: where. tuple: what was being processed; None where nothing was.
    """

    def __init__(self, component: str, task: int, error: BaseException, message: Tuple | None = None) -> None:
        about = "" if message is None else f", at {message!r}"
        super().__init__(f"task {task} of {component!r}: {type(error).__name__}: {error}{about}")
        self.component = component
        self.task = task
        self.tuple = message
        self.__cause__ = error


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A tuple that could not be processed or sent, and why."""

    tuple: Tuple
    error: TaskError
