"""Reports a PySpark task's executors to its local worker, for status, `top` and metrics.

A PySpark task cannot be scraped: it has no port, and runs for one job. Source: Storm's workers, which report
metrics to their supervisor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.wire import control_pb2

logger = event_logger(__name__)

PERIOD_SECONDS = 1.0
CALL_SECONDS = 2.0
_END_SECONDS = 2 * CALL_SECONDS
"""The time for a report in progress, and for the last one."""
_HASTE_SECONDS = 0.5
"""A shorter time after an error: a cancelled PySpark task has two seconds in total."""


class ProgramReporter:
    """Reports each second, in its own thread, until the context manager exits.

    The last report has the final numbers. After an error it has no metrics, which removes the earlier ones:
    Spark may run the stage again, and would count tuples twice. Failures are logged at most once a minute.

    The thread closes `control`, and calls `report`.
    """

    def __init__(
        self,
        control: ControlClient,
        report: Callable[[], control_pb2.ReportProgramRequest],
        period: float = PERIOD_SECONDS,
    ) -> None:
        self._control = control
        self._read = report
        self._period = period
        self._reported = False
        self._failed = False
        self._ended = threading.Event()
        self._log_rate = LogRate()
        self._thread = threading.Thread(target=self._main, name="tuplewire reporter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = kind is not None
        self._ended.set()
        self._thread.join(_HASTE_SECONDS if self._failed else _END_SECONDS)

    def _main(self) -> None:
        with self._control:
            while not self._ended.wait(self._period):
                self._report()
            self._report()

    def _report(self) -> None:
        report = self._read()
        report.ended = self._ended.is_set()
        if self._failed:
            if not self._reported:
                return  # there are no earlier metrics to remove
            report.ClearField("metrics")
        self._reported = True
        try:
            self._control.report_program(report)
        except TuplewireError as error:
            if reports := self._log_rate.due("refused"):
                logger.warning("program.not_reported", extra={"reports": reports, "reason": str(error)})
