"""Lines of the log: an event's name, and its facts as `key=value`.

Most formatters show a record's message and nothing else, so the facts are in it. They are in `extra` as well,
with the name as `event`: a collector need not take the text apart. Every logger of client and worker is one
of these.
"""

from __future__ import annotations

import logging
from typing import Any

from tuplewire.text.shown import shown_value


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose messages are names of events; `extra` has their facts. A fact is never a secret."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log an event with its facts."""
        if not self.isEnabledFor(level):
            return
        facts = dict(kwargs.pop("extra", None) or {})
        event = str(msg) % args if args else str(msg)
        text = " ".join([event, *(f"{key}={shown_value(value)}" for key, value in facts.items())])
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the line that calls, not this one
        self.logger.log(level, text, extra={"event": event, **facts}, **kwargs)


def event_logger(name: str) -> EventLogger:
    """Return the logger of a module."""
    return EventLogger(logging.getLogger(name))
