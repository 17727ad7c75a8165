"""The settings of a running topology, by Storm's keys. Source: Storm's `Config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from tuplewire.errors import ConfigError

_PREFIX = "topology."
LAUNCHER_KEYS = ("topology.environment", "topology.submitter.user", "topology.worker.childopts")
"""Those that only whoever starts processes reads."""


class ErrorPolicy(StrEnum):
    """What happens when a spout or bolt raises."""

    FAIL = "fail"
    """The worker fails."""
    SKIP = "skip"
    """The tuple is failed, the error counted and told, and the task goes on."""
    DEAD_LETTER = "dead_letter"
    """As skip, and the tuple is handed over with its error."""


def _setting(key: str, default: Any, effect: str) -> Any:
    return field(default=default, metadata={"key": key, "help": effect})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySettings:
    """What the executors of a topology go by; a component's own configuration comes before the topology's.

    Each field says what it does, and has Storm's key; that of the error policy is ours, since Storm has none:
    there the worker fails. Times are in seconds here, and as the key says in a configuration.
    """

    workers: int = _setting("topology.workers", 1, "how many workers share the tasks out")
    receive_queue_tuples: int = _setting(
        "topology.executor.receive.buffer.size", 32_768, "the capacity of an executor's receive queue"
    )
    max_spout_pending: int = _setting(
        "topology.max.spout.pending",
        0,
        "tuples with a message id that a spout's task may have on the way; 0: any number",
    )
    tick_seconds: float = _setting(
        "topology.tick.tuple.freq.secs", 0.0, "how often a bolt gets a tick tuple; 0: never"
    )
    spout_wait_seconds: float = _setting(
        "topology.sleep.spout.wait.strategy.time.ms",
        0.001,
        "how long a spout that has emitted nothing is left alone",
    )
    always_serialize: bool = _setting(
        "topology.testing.always.try.serialize",
        False,
        "serialize tuples within a worker as well, so that a test finds values that do not travel",
    )
    size_metrics: bool = _setting(
        "topology.serialized.message.size.metrics", False, "count bytes for each pair of tasks"
    )
    message_timeout_seconds: float = _setting(
        "topology.message.timeout.secs",
        30.0,
        "how long a spout's tuple may take, where acker tasks follow it, before it has failed; 0: any time",
    )
    acker_executors: int | None = _setting(
        "topology.acker.executors",
        None,
        "the tasks that follow tuples where a topology runs in several processes (default: one for each "
        "worker); 0: nobody does",
    )
    refresh_seconds: float = _setting(
        "task.refresh.poll.secs", 10.0, "how often a worker looks again where the tasks are that it sends to"
    )
    heartbeat_seconds: float = _setting(
        "worker.heartbeat.frequency.secs",
        1.0,
        "how often a worker looks at its executors and says that it is alive",
    )
    task_timeout_seconds: float = _setting(
        "nimbus.task.timeout.secs",
        30.0,
        "how long one call of a spout or bolt may take before its executor counts as stuck",
    )
    error_policy: ErrorPolicy = _setting(
        "topology.error.policy",
        ErrorPolicy.FAIL,
        "what an exception of a spout or bolt does: fail the worker (fail), fail the tuple and count (skip), "
        "or hand the tuple over with its error as well (dead_letter)",
    )

    @property
    def ackers(self) -> int:
        """How many acker tasks follow tuples between processes."""
        return self.workers if self.acker_executors is None else self.acker_executors

    @classmethod
    def of(cls, conf: Mapping[str, Any]) -> Self:
        """Read settings; ConfigError for a value that does not fit, or an unknown key of Storm's "topology.".

        Other keys are the user's own, for spouts and bolts to read.
        """
        known = {each.metadata["key"]: each for each in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in conf.items():
            if key in known:
                values[known[key].name] = _checked(key, value, known[key].default)
            elif key.startswith(_PREFIX) and key not in LAUNCHER_KEYS:
                raise ConfigError(f"unknown setting {key!r}; known are: {', '.join(known)}")
        return cls(**values)


_LEAST = {"topology.workers": 1, "topology.executor.receive.buffer.size": 1}


def _checked(key: str, value: Any, default: Any) -> Any:
    if isinstance(default, ErrorPolicy):
        if value not in list(ErrorPolicy):
            raise ConfigError(f"{key} is one of {', '.join(ErrorPolicy)}, not {value!r}")
        return ErrorPolicy(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is True or False, not {value!r}")
        return value
    if value is None and not _LEAST.get(key):
        return default  # Storm's way to say that there is no limit, or no tick
    kinds = (int, float) if isinstance(default, float) else (int,)
    least = _LEAST.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < float("inf"):
        what = "number" if isinstance(default, float) else "whole number"
        raise ConfigError(f"{key} is a {what} from {least}, not {value!r}")
    return value / 1000 if key.endswith(".ms") else value
