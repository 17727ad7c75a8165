"""Traces of messages by OpenTelemetry: W3C context in their headers, and spans wherever they pass.

Off unless TUPLEWIRE_TRACING is true, or the program calls enable(); docs/how-to/trace.md has the rest. Where
it is off, those who send and receive have no observer. Needs the extra `otel`.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire.observer import Observer
from tuplewire.tracing.tracing_settings import TracingSettings

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Tracing

_lock = threading.RLock()
_tracing: Tracing | None = None
_decided = False


def active() -> Tracing | None:
    """Return what makes this process's spans; None where tracing is off.

    The first call reads the variables. Raises ConfigError if they say what cannot be done.
    """
    if not _decided:
        with _lock:
            if not _decided:
                settings = TracingSettings.from_environment()
                _decide(_made(settings.trace_sample) if settings.tracing else None)
    return _tracing


def observer() -> Observer | None:
    """Return what clients tell of their messages; None where tracing is off."""
    if (tracing := active()) is None:
        return None
    from tuplewire.tracing.program_observer import ProgramObserver

    return ProgramObserver(tracing)


def enable(
    *, sample: float = 1.0, service: str = "tuplewire", instance: str = "", flush_at_exit: bool = True
) -> None:
    """Make spans from now on, for what is made from now on: clients, subscriptions, topologies, workers.

    They go through the tracer provider that the program has set. Where it has set none, one is made that
    sends them as OpenTelemetry's own variables say.

    Args:
        sample: Of what is sent outside of any span, how much begins a trace, from 0 to 1.
        service: The name of the service in the spans, unless OTEL_SERVICE_NAME has it.
        instance: Which one of that service this is. Default: the host and the process.
        flush_at_exit: Whether the end of the process waits for its spans to be sent.

    Raises:
        ConfigError: The extra `otel` is not installed, or sample is no such number.
    """
    ratio = TracingSettings(trace_sample=sample).trace_sample
    with _lock:
        _decide(_made(ratio, service, instance, flush_at_exit=flush_at_exit))


def disable() -> None:
    """Make no spans from now on, for what is made from now on."""
    with _lock:
        _decide(None)


def flush() -> None:
    """Send the spans that have ended; for a process that may be killed, such as one of Spark's."""
    if _tracing is not None:
        _tracing.flush()


def _made(
    sample: float, service: str = "tuplewire", instance: str = "", *, flush_at_exit: bool = True
) -> Tracing:
    try:
        from tuplewire.tracing.spans import Tracing, make_provider
    except ImportError as error:
        raise ConfigError(
            f"tracing needs the extra `otel`: pip install 'tuplewire[otel]' ({error})"
        ) from error
    named = instance or f"{socket.gethostname()}:{os.getpid()}"
    return Tracing(make_provider(service, named, flush_at_exit=flush_at_exit), sample)


def _decide(tracing: Tracing | None) -> None:
    global _tracing, _decided
    _tracing, _decided = tracing, True
