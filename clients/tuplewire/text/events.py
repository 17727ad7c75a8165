"""Log events: a name, and fields as `key=value`.

Most formatters show only the message of a record, so it contains the fields. `extra` contains them too, with
the name as `event`, so that log collectors do not need to parse the message. All loggers of clients and
workers are EventLoggers.
"""

from __future__ import annotations

import logging
from typing import Any

from tuplewire.text.escaping import escape_value


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger with names of events as messages, and their fields in `extra`. Fields contain no secrets."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log an event with its fields."""
        if not self.isEnabledFor(level):
            return
        facts = dict(kwargs.pop("extra", None) or {})
        event = str(msg) % args if args else str(msg)
        text = " ".join([event, *(f"{key}={escape_value(value)}" for key, value in facts.items())])
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the record names the caller's line
        self.logger.log(level, text, extra={"event": event, **facts}, **kwargs)


def event_logger(name: str) -> EventLogger:
    """Return the event logger of a module."""
    return EventLogger(logging.getLogger(name))
