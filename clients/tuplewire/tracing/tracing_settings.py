"""The settings of tracing: on or off, and the share of sampled traces."""

from __future__ import annotations

from dataclasses import dataclass

from tuplewire.settings.settings import BOOLEAN, Kind, Settings, in_range, setting

RATIO = Kind("RATIO", "a number from 0 to 1", (int, float), in_range(0, 1), float)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(Settings):
    """The settings of tracing. A program reads them from the environment, a worker with its own settings."""

    tracing: bool = setting(
        BOOLEAN,
        False,
        "create OpenTelemetry spans, and send them to OTEL_EXPORTER_OTLP_ENDPOINT; requires the extra `otel`",
    )
    trace_sample_ratio: float = setting(
        RATIO,
        1.0,
        "share of sends outside of any span that start a trace; messages with a context follow their sender",
    )
