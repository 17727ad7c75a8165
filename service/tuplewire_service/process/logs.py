"""Log events as lines on standard error: text for people, JSON for collectors.

A message is an event's name (`connection.closed`), what belongs to it is in `extra`; nothing is formatted
into sentences.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _EventFormatter(logging.Formatter):
    """Splits a record into time, level, event, logger, what belongs to it, and the error's trace."""

    def event(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the record's parts, in the order in which they are shown."""
        instant = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts: dict[str, Any] = {
            "time": f"{instant}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        parts.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info:
            parts["error"] = self.formatException(record.exc_info)
        return parts


class JsonFormatter(_EventFormatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(self.event(record), default=str, ensure_ascii=False)


class TextFormatter(_EventFormatter):
    """`TIME LEVEL event key=value ...`; a trace follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        parts = self.event(record)
        trace = parts.pop("error", "")
        head = f"{parts.pop('time')} {parts.pop('level').upper():7} {parts.pop('event')}"
        parts.pop("logger")
        line = " ".join([head, *(f"{key}={_shown(value)}" for key, value in parts.items())])
        return f"{line}\n{trace}" if trace else line


def configure(level: str, form: str) -> None:
    """Send every log record of the process to standard error, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # asyncio tells its selector's name, and when a callback was slow; neither is an event of ours.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and not any(c.isspace() or c in '"=' for c in text) else json.dumps(text)
