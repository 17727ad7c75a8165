"""The log output of a process: line format, recent lines, and temporary changes of the level.

Used by process/main.py, debugging.py and command/control_commands.py. Owns the log handlers and the recent
lines. Thread-safe. Exception: change(). How-to: docs/how-to/debug.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from shutil import get_terminal_size

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuplewire.errors import MalformedError
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.text.formatting import escape_unprintable, fold
from tuplewire_service.metrics.families import counter_by

logger = event_logger(__name__)

LEVELS = ("debug", "info", "warning", "error")
MAX_SECONDS = 24 * 3600.0
_MAX_LINES = 1000
_MAX_LINE_LENGTH = 10_000
_LINE_END = "\n"
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes of every log record."""


class EventFormatter(logging.Formatter):
    """`TIME LEVEL event key=value ...`, wrapped if `folded`, and a traceback; or one JSON object per line."""

    def __init__(self, log_format: str, *, folded: bool = False) -> None:
        super().__init__()
        self._log_format, self._folded = log_format, folded

    def format(self, record: logging.LogRecord) -> str:
        instant = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        moment = f"{instant}.{int(record.msecs):03d}Z"
        text = self.formatException(record.exc_info) if record.exc_info else ""
        if self._log_format == "json":
            head = {"time": moment, "level": record.levelname.lower(), "event": record.getMessage()}
            facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
            parts = {**head, "logger": record.name, **facts, **({"error": text} if text else {})}
            return json.dumps(parts, default=str)  # ASCII, for any encoding and terminal
        line = f"{moment} {record.levelname:7} {escape_unprintable(record.getMessage())}"
        width = get_terminal_size((_MAX_LINE_LENGTH, 1)).columns
        line = fold(line, width, indent=2) if self._folded else line
        return f"{line}\n{escape_unprintable(text, keep=_LINE_END)}" if text else line


class LogOutput(logging.Handler, Collector):
    """The destination of log records. As a handler, it stores the last lines, and counts all records."""

    def __init__(self, level: str, log_format: str) -> None:
        """Start with the configured level and format; nothing is written before start()."""
        super().__init__()
        self._configured_level, self._log_format = level, log_format
        self.recent_lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._counts: Counter[str] = Counter()
        self._restore_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send every log record of the process to standard error, as `text` or `json`."""
        stderr_handler = logging.StreamHandler(sys.stderr)
        stderr_handler.setFormatter(EventFormatter(self._log_format, folded=sys.stderr.isatty()))
        self.setFormatter(EventFormatter(self._log_format))
        logging.basicConfig(level=self._configured_level.upper(), handlers=[stderr_handler, self], force=True)
        # At the level debug, asyncio logs its selector's name, which is not an event of this project.
        logging.getLogger("asyncio").setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        self._counts[logging.getLevelName(min(record.levelno, logging.ERROR)).lower()] += 1
        # If the arguments of a record do not fit its text, the other handler reports it.
        with contextlib.suppress(Exception):
            self.recent_lines.append(self.format(record)[:_MAX_LINE_LENGTH])

    def change(self, level: str, interval_seconds: float, seconds: float, by: Mapping[str, str]) -> None:
        """Change the level, and the rate of events that peers can trigger. Call only from the event loop.

        After `seconds`, at most a day, the configured values apply again. Raises MalformedError.

        Args:
            level: The level; empty: the configured one.
            interval_seconds: Minimum seconds between such events; 0: the default of one minute.
            by: The client that requested the change, for the log.
        """
        level = level or self._configured_level
        interval_seconds = interval_seconds or LogRateLimiter.DEFAULT_INTERVAL_SECONDS
        if level not in LEVELS:
            raise MalformedError(f"a level is one of {', '.join(LEVELS)}, not {level[:100]!r}")
        if not (0 < seconds <= MAX_SECONDS and 0 <= interval_seconds <= MAX_SECONDS):
            raise MalformedError(f"both times of a change must be between 0 and {MAX_SECONDS:g} s")
        change = {"level": level, "interval_seconds": interval_seconds, "seconds": seconds}
        logger.warning("log_level.changed", extra={**by, **change})
        if self._restore_timer is not None:
            self._restore_timer.cancel()
        self._apply(level, interval_seconds)
        self._restore_timer = asyncio.get_running_loop().call_later(seconds, self._restore)

    def _restore(self) -> None:
        self._apply(self._configured_level, LogRateLimiter.DEFAULT_INTERVAL_SECONDS)
        logger.warning("log_level.restored", extra={"level": self._configured_level})

    def _apply(self, level: str, interval_seconds: float) -> None:
        logging.getLogger().setLevel(level.upper())
        LogRateLimiter.quiet_seconds = interval_seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metric. Thread-safe."""
        counts = [(level, self._counts[level]) for level in LEVELS]
        yield counter_by("log_records", "Log records written, by level.", "level", counts)
