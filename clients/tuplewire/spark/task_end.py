"""The end of a Spark task, as the Python process sees it that runs the task's function."""

from __future__ import annotations

from collections.abc import Callable

_checks: list[Callable[[], None]] = []


def check_at_task_end(check: Callable[[], None]) -> None:
    """Have `check` called at the end of each Spark task that this process runs; again does nothing.

    That is when the task's function has ended and all that it yields is handed out, and before Spark hears of
    a success: what `check` raises is the error of this very task. It is not called after another error.

    PySpark has no listeners for that. The last thing that its worker does in the block whose errors are the
    task's (`invoke_udf` in pyspark/worker.py) is to put the TaskContext away; so that is where we look.
    """
    if not _checks:
        _watch()
    if check not in _checks:
        _checks.append(check)


def _watch() -> None:
    from pyspark import TaskContext

    put_away = vars(TaskContext)["_setTaskContext"].__func__

    def put_away_and_check(cls: type[TaskContext], context: TaskContext | None) -> None:
        put_away(cls, context)
        if context is None:
            for check in _checks:
                check()

    TaskContext._setTaskContext = classmethod(put_away_and_check)  # type: ignore[assignment, method-assign]
