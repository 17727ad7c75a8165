"""Whether this process makes spans, and of how much."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tuplewire.settings.settings import FLAG, Kind, Settings, setting, settings_of, within

RATIO = Kind("RATIO", "a number from 0 to 1", (int, float), within(0, 1), float)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings(Settings):
    """What a program reads from its variables, and a worker from where it has its other settings."""

    tracing: bool = setting(
        FLAG,
        False,
        "make OpenTelemetry spans, and send them to where OTEL_EXPORTER_OTLP_ENDPOINT says; needs the extra "
        "`otel`",
    )
    trace_sample: float = setting(
        RATIO,
        1.0,
        "of what begins outside of any span, how much begins a trace; what has a context follows its sender",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read them from variables such as TUPLEWIRE_TRACING; ConfigError for a value that does not fit."""
        return cls(
            **{
                name: declared.parse(environment[declared.variable], f"environment {declared.variable}")
                for name, declared in settings_of(cls).items()
                if declared.variable in environment
            }
        )
