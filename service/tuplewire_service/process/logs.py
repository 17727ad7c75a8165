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
    """`TIME LEVEL event key=value ...`, then a trace on lines of its own; or one JSON object per line."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        instant = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        moment, event = f"{instant}.{int(record.msecs):03d}Z", record.getMessage()
        facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == "json":
            head = {"time": moment, "level": record.levelname.lower(), "event": event, "logger": record.name}
            parts = {**head, **facts, **({"error": trace} if trace else {})}
            return json.dumps(parts, default=str, ensure_ascii=False)
        pairs = (f"{key}={_shown(value)}" for key, value in facts.items())
        line = " ".join([moment, f"{record.levelname:7}", event, *pairs])
        return f"{line}\n{trace}" if trace else line


def configure(level: str, form: str) -> None:
    """Send every log record of the process to standard error, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EventFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # asyncio tells its selector's name, and when a callback was slow; neither is an event of ours.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and not any(c.isspace() or c in '"=' for c in text) else json.dumps(text)
