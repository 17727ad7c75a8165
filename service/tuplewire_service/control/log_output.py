"""The log of a process: how a line looks, what was written lately, and what may be changed while it runs."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuplewire.errors import MalformedError
from tuplewire.text.events import event_logger
from tuplewire.text.log_rate import LogRate
from tuplewire.text.shown import shown
from tuplewire_service.metrics.families import counters

logger = event_logger(__name__)

LEVELS = ("debug", "info", "warning", "error")
MOST_SECONDS = 24 * 3600.0
_MOST_LINES = 1000
_MOST_LINE = 10_000
_LINE_END = "\n"
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every log record has."""


class EventFormatter(logging.Formatter):
    """`TIME LEVEL event key=value ...`, then a trace on lines of its own; or one JSON object per line."""

    def __init__(self, form: str) -> None:
        """Write `text` or `json`."""
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        instant = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        moment = f"{instant}.{int(record.msecs):03d}Z"
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == "json":
            head = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
            facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
            parts = {**head, "logger": record.name, **facts, **({"error": trace} if trace else {})}
            return json.dumps(parts, default=str)  # in ASCII, for any encoding and terminal
        line = f"{moment} {record.levelname:7} {shown(record.getMessage())}"
        return f"{line}\n{shown(trace, keep=_LINE_END)}" if trace else line


class _Recent(logging.Handler):
    """Keeps the last lines, and counts all."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=_MOST_LINES)
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        level = logging.getLevelName(min(record.levelno, logging.ERROR))
        self.counts[level.lower()] += 1
        self.lines.append(self.format(record)[:_MOST_LINE])


class LogOutput(Collector):
    """Where the records of a process go. Of which level they are may be changed for a time."""

    def __init__(self, level: str, form: str) -> None:
        """Begin with what is configured; nothing is written before start()."""
        self._level, self._form = level, form
        self._recent = _Recent()
        self._back: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send every log record of the process to standard error, as `text` or `json`."""
        written = logging.StreamHandler(sys.stderr)
        for handler in (written, self._recent):
            handler.setFormatter(EventFormatter(self._form))
        logging.basicConfig(level=self._level.upper(), handlers=[written, self._recent], force=True)
        # asyncio tells its selector's name, and when a callback was slow; neither is an event of ours.
        logging.getLogger("asyncio").setLevel(logging.WARNING)

    def lines(self) -> list[str]:
        """Return the last lines."""
        return list(self._recent.lines)

    def change(self, level: str, every_seconds: float, seconds: float, by: Mapping[str, str]) -> None:
        """Change the level, and how often each kind of event that others cause is written; on a loop.

        level: empty: as it is configured. every_seconds: 0: as it is, each minute. After `seconds`, a day at
        most, all is as before. by: who has asked, for the log. Raises MalformedError.
        """
        level = level or self._level
        if level not in LEVELS:
            raise MalformedError(f"a level is one of {', '.join(LEVELS)}, not {level[:100]!r}")
        if not (0 < seconds <= MOST_SECONDS and 0 <= every_seconds <= MOST_SECONDS):
            raise MalformedError(
                f"a change of the log lasts over 0 to {MOST_SECONDS:g} s, and is undone then"
            )
        change = {"level": level, "every_seconds": every_seconds or LogRate.QUIET_SECONDS, "seconds": seconds}
        logger.warning("log.changed", extra={**by, **change})
        if self._back is not None:
            self._back.cancel()
        self._apply(level, every_seconds or LogRate.QUIET_SECONDS)
        self._back = asyncio.get_running_loop().call_later(seconds, self._fall_back)

    def _fall_back(self) -> None:
        self._back = None
        self._apply(self._level, LogRate.QUIET_SECONDS)
        logger.warning("log.as_configured", extra={"level": self._level})

    def _apply(self, level: str, every_seconds: float) -> None:
        logging.getLogger().setLevel(level.upper())
        LogRate.quiet_seconds = every_seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metric; from any thread."""
        counts = self._recent.counts
        yield counters(
            "log_records",
            "Records that were written to the log, by level.",
            "level",
            [(level, counts[level]) for level in LEVELS],
        )
