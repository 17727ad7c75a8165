"""The settings of a running topology, by Storm's keys. Source: Storm's `Config`.

Used by executors, builders and clusters. Owns no state. Thread-safe. Design: docs/design/topologies.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuplewire.settings.config import SessionSettings
from tuplewire.settings.settings import (
    BOOLEAN,
    SECONDS,
    SECONDS_OR_ZERO,
    Settings,
    choice,
    integer,
    nested,
    setting,
    storm_setting,
)
from tuplewire_topology.authoring.user_metrics import MAX_SERIES

LAUNCHER_KEYS = ("topology.environment", "topology.submitter.user", "topology.worker.childopts")
"""Keys that only a launcher of processes reads."""
TICK_KEY = "topology.tick.tuple.freq.secs"


class ErrorPolicy(StrEnum):
    """The reaction to an exception of a spout or bolt."""

    FAIL = "fail"
    """The worker fails."""
    SKIP = "skip"
    """The tuple fails, the error is counted and reported, and the task continues."""
    DEAD_LETTER = "dead_letter"
    """The worker's dead-letter task, or the program, gets the tuple and its error. The tuple is acked.

    If neither accepts the tuple, or if it could not be sent, it fails as with SKIP.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySettings(Settings):
    """The settings of a topology's executors. A component's configuration overrides the topology's.

    Fields have Storm's keys, except `metrics_series` and the error settings. Times are in seconds here, and
    in the key's unit in a configuration. Keys that begin with neither `topology.` nor `tuplewire.` are for
    the user's spouts and bolts. `session` configures the sessions between the workers.
    """

    REFUSED = ("topology.",)
    PASSED = (*LAUNCHER_KEYS, "topology.name")  # the worker reads the name

    session: SessionSettings = nested(SessionSettings)
    workers: int = storm_setting("topology.workers", integer(), 1, "number of workers that share the tasks")
    receive_queue_tuples: int = storm_setting(
        "topology.executor.receive.buffer.size", integer(), 32_768, "maximum tuples in an executor's queue"
    )
    max_spout_pending: int = storm_setting(
        "topology.max.spout.pending",
        integer(0),
        0,
        "maximum number of a spout task's pending tuples with a message id; 0: no limit",
    )
    tick_seconds: float = storm_setting(
        TICK_KEY, SECONDS_OR_ZERO, 0.0, "interval of a bolt's tick tuples; 0: none"
    )
    spout_wait_seconds: float = storm_setting(
        "topology.sleep.spout.wait.strategy.time.ms",
        SECONDS_OR_ZERO,
        0.001,
        "wait before the next call of a spout that emitted nothing",
    )
    always_serialize: bool = storm_setting(
        "topology.testing.always.try.serialize",
        BOOLEAN,
        False,
        "also serialize tuples within a worker, so that a test finds values that cannot be serialized, or "
        "that change after emit",
    )
    has_size_metrics: bool = storm_setting(
        "topology.serialized.message.size.metrics",
        BOOLEAN,
        False,
        "count bytes from other processes by sending component",
    )
    metrics_series: int = setting(
        integer(0),
        MAX_SERIES,
        "maximum number of series of user metrics that a process exports; others are omitted, and counted",
        key="topology.user.metrics.series",
    )
    message_timeout_seconds: float = storm_setting(
        "topology.message.timeout.secs",
        SECONDS_OR_ZERO,
        30.0,
        "time after which a spout's tuple fails, if acker tasks track it; 0: no limit",
    )
    acker_executors: int | None = storm_setting(
        "topology.acker.executors",
        integer(0),
        None,
        "number of tasks that track tuples if a topology runs in several processes (default: one for each "
        "worker); 0: tuples are not tracked",
    )
    heartbeat_seconds: float = storm_setting(
        "worker.heartbeat.frequency.secs",
        SECONDS,
        1.0,
        "interval at which a worker checks its executors and writes its state file",
    )
    task_timeout_seconds: float = storm_setting(
        "nimbus.task.timeout.secs",
        SECONDS,
        30.0,
        "duration of one call of a spout or bolt after which its executor counts as stuck",
    )
    error_tries: int = setting(
        integer(),
        1,
        "maximum number of attempts of a bolt to process a tuple before the error policy applies",
        key="topology.error.tries",
    )
    error_policy: ErrorPolicy = setting(
        choice(ErrorPolicy),
        ErrorPolicy.FAIL,
        "effect of an exception in a spout or bolt: fail the worker (fail), fail the tuple and count the "
        "error (skip), or store the tuple with its error, as processed (dead_letter)",
        key="topology.error.policy",
    )

    @property
    def n_ackers(self) -> int:
        """The number of acker tasks if the topology runs in several processes."""
        return self.workers if self.acker_executors is None else self.acker_executors
