"""Log events: a name, and fields as `key=value`; and the rate of events that remote peers can trigger.

Most formatters show only the message of a record, so it contains the fields. `extra` contains them too, with
the name as `event`, so that log collectors do not parse the message. All loggers here are EventLoggers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable
from time import monotonic
from typing import Any, ClassVar

from tuplewire.text.formatting import escape_value

_MAX_KINDS = 1000
_MAX_LINES = 100


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger with names of events as messages, and their fields in `extra`. Fields contain no secrets."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log an event with its fields."""
        if not self.isEnabledFor(level):
            return
        fields = dict(kwargs.pop("extra", None) or {})
        event = str(msg) % args if args else str(msg)
        text = " ".join([event, *(f"{key}={escape_value(value)}" for key, value in fields.items())])
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the record names the caller's line
        self.logger.log(level, text, extra={"event": event, **fields}, **kwargs)


def event_logger(name: str) -> EventLogger:
    """Return the event logger of a module."""
    return EventLogger(logging.getLogger(name))


class LogRateLimiter:
    """Permits one line per minute for each kind of event, and counts suppressed events. Not thread-safe.

    All kinds together have at most 100 lines per minute, so a peer cannot fill the log with new kinds, such
    as addresses. `quiet_seconds` is the length of this minute for the whole process; change it for debugging.
    """

    DEFAULT_INTERVAL_SECONDS: ClassVar[float] = 60.0
    quiet_seconds: ClassVar[float] = DEFAULT_INTERVAL_SECONDS

    def __init__(self) -> None:
        self._last_lines: dict[Hashable, tuple[float, int]] = {}
        """The time of the last line of each kind, and the number of events since then."""
        self._interval_start = -math.inf
        self._lines = 0

    def count_event(self, kind: Hashable, count: int = 1) -> int:
        """Count events; return their number since the kind's last line, or 0 if a line is not due yet."""
        now = monotonic()
        if now - self._interval_start >= self.quiet_seconds:
            self._interval_start, self._lines = now, 0
        last_line_at, suppressed = self._last_lines.pop(kind, (-math.inf, 0))
        may_log = now - last_line_at >= self.quiet_seconds and self._lines < _MAX_LINES
        self._lines += may_log
        if len(self._last_lines) >= _MAX_KINDS:  # peers choose the kinds, so the memory for them is bounded
            del self._last_lines[next(iter(self._last_lines))]
        self._last_lines[kind] = (now, 0) if may_log else (last_line_at, suppressed + count)
        return suppressed + count if may_log else 0
