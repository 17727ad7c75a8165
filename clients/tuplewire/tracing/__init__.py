"""Tracing of messages with OpenTelemetry: W3C trace context in message headers, and a span for each step.

Off unless TUPLEWIRE_TRACING is true or the program calls enable(); see docs/how-to/trace.md. Without tracing,
senders and receivers have no Tracing object. Needs the extra `otel`. Design: docs/design/traces.md.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire.settings.settings import BOOLEAN, Kind, Settings, in_range, setting

if TYPE_CHECKING:
    from tuplewire.tracing.spans import Tracing

_RATIO = Kind("RATIO", "a number from 0 to 1", (int, float), in_range(0, 1), float)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(Settings):
    """The settings of tracing. A program reads them from the environment, a worker with its own settings."""

    tracing: bool = setting(
        BOOLEAN,
        False,
        "create OpenTelemetry spans, and send them to OTEL_EXPORTER_OTLP_ENDPOINT; requires the extra `otel`",
    )
    trace_sample_ratio: float = setting(
        _RATIO,
        1.0,
        "share of sends outside of any span that start a trace; messages with a context follow their sender",
    )


_lock = threading.RLock()
_tracing: Tracing | None = None
_is_configured = False


def _after_fork_in_child() -> None:
    """Replace the lock, because another thread may have held it during the fork."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def get_tracing() -> Tracing | None:
    """Return the Tracing object, or None. The first call reads the environment and may raise ConfigError."""
    if not _is_configured:
        with _lock:
            if not _is_configured:  # another thread may have read the environment first
                settings = TracingSettings.from_environment()
                if settings.tracing:
                    enable(sample_ratio=settings.trace_sample_ratio)
                else:
                    disable()
    return _tracing


def enable(
    *, sample_ratio: float = 1.0, service: str = "tuplewire", instance: str = "", flush_at_exit: bool = True
) -> None:
    """Trace all clients, subscriptions, topologies and workers that are created from now on.

    Spans are sent by the program's tracer provider. If the program has not set one, a provider is created
    that follows OpenTelemetry's own variables.

    Args:
        sample_ratio: The share, from 0 to 1, of sends outside of any span that start a trace.
        service: The name of the service in the spans, unless OTEL_SERVICE_NAME is set.
        instance: The instance of the service. Default: the host and the process.
        flush_at_exit: True if the process waits at its end until its spans are sent.

    Raises:
        ConfigError: The extra `otel` is not installed, or sample_ratio is not a number from 0 to 1.
    """
    ratio = TracingSettings(trace_sample_ratio=sample_ratio).trace_sample_ratio
    try:
        from tuplewire.tracing.spans import Tracing, make_provider
    except ImportError as error:
        raise ConfigError(
            f"tracing needs the extra `otel`: pip install 'tuplewire[otel]' ({error})"
        ) from error
    instance_id = instance or f"{socket.gethostname()}:{os.getpid()}"
    with _lock:
        _set_tracing(Tracing(make_provider(service, instance_id, flush_at_exit=flush_at_exit), ratio))


def disable() -> None:
    """Do not trace clients, subscriptions, topologies and workers that are created from now on."""
    with _lock:
        _set_tracing(None)


def flush() -> None:
    """Send the finished spans; for a process that may be killed, such as one of Spark's."""
    if _tracing is not None:
        _tracing.flush()


def _set_tracing(tracing: Tracing | None) -> None:
    global _tracing, _is_configured
    _tracing, _is_configured = tracing, True
