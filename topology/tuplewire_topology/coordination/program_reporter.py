"""What a PySpark task reports of its executors to the worker beside it, for status, `top` and metrics.

Nobody can scrape a PySpark task: it has no port, and lives for one job. Source: Storm's workers, which bring
their metrics to the supervisor beside them.
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
"""A report that is under way, and the last one."""
_HASTE_SECONDS = 0.5
"""A PySpark task that is cancelled has two seconds left in all."""


class ProgramReporter:
    """Reports every second, in a thread of its own, until the block ends.

    The last report says how far the tasks came. After an error it is empty, which removes what was reported
    before: Spark may run the stage again, and would count the same tuples twice. A report that fails is
    logged, once a minute, and the topology continues.

    control: to the worker; closed at the end. report: returns a report, from any thread, or None as long as
    there is nothing to report.
    """

    def __init__(
        self,
        control: ControlClient,
        report: Callable[[], control_pb2.ReportProgramRequest | None],
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
        if report is None:
            return
        report.ended = self._ended.is_set()
        if self._failed:
            if not self._reported:
                return
            report.ClearField("metrics")
        self._reported = True
        try:
            self._control.report_program(report)
        except TuplewireError as error:
            if reports := self._log_rate.due("refused"):
                logger.warning("program.not_reported", extra={"reports": reports, "reason": str(error)})
