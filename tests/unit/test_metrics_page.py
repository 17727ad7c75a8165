"""The page of metrics: it has what a worker tells, with types and labels, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.certificates import Authority
from helpers.secured import files_of
from prometheus_client.metrics_core import Metric

from tuplewire.session.durations import Durations
from tuplewire.session.ledger import LedgerSnapshot
from tuplewire.settings.settings import settings_of
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.control.log_output import LogOutput
from tuplewire_service.messaging.base import ClientStatistics, ReceiveCount, ServerStatistics
from tuplewire_service.metrics.worker_metrics import WorkerCollector
from tuplewire_service.process.worker_security import Security
from tuplewire_service.worker.times import TimeState
from tuplewire_service.worker.worker_snapshot import (
    PeerSnapshot,
    RecentSnapshot,
    RejectedSnapshot,
    SinkSnapshot,
    TaskSnapshot,
    Timings,
    WorkerSnapshot,
    WorkerState,
)

BOUNDED = WorkerConfig(worker_id="w", metrics_series=20)
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def snapshot(tasks: int, peers: int) -> WorkerSnapshot:
    """Return a worker with so many tasks and peers, each of which has something to tell."""
    ledger = LedgerSnapshot(10, 6, {"closed": 1}, 3)
    return WorkerSnapshot(
        worker_id="w",
        incarnation=1,
        topology="t",
        state=WorkerState.READY,
        assignment_version=1,
        newest_version=1,
        ledger=ledger,
        peers=[
            PeerSnapshot(
                f"w{number}", "host:1", number, True, ClientStatistics(ledger, 9, 1, 90, 0), frozenset()
            )
            for number in range(peers)
        ],
        predecessor_lost=0,
        perhaps_lost={f"w{number}": 2 for number in range(peers)},
        tasks=[TaskSnapshot(task, 3, 30, 100, 0.03, True, 7, 2, 1.5) for task in range(tasks)],
        local_tasks=tasks,
        servers=ServerStatistics(
            [ReceiveCount(f"w{number}", 9, 1, 90) for number in range(peers)],
            3,
            2,
            smallest_window=64,
            identities={f"token t{number}": (2, 1) for number in range(peers)},
        ),
        timings=Timings(
            {state.value: 1.0 for state in TimeState},
            {("1", "local"): 0.5},
            RecentSnapshot(1.0),
            *(Durations() for _ in range(4)),
        ),
        sinks=SinkSnapshot(1, 2, 3, 4),
        rejected=RejectedSnapshot(5, 1, 9),
        redelivered_messages=0,
        addresses=(),
        peer_addresses=(),
        congested=frozenset(),
        moving_tasks=0,
        not_ready_because="",
    )


def families(tasks: int, peers: int, config: WorkerConfig) -> list[Metric]:
    """Return what a worker with so many tasks and peers tells."""
    return list(WorkerCollector(lambda: snapshot(tasks, peers), config, 2**30).collect())


def rows() -> dict[str, tuple[str, set[str]]]:
    """Return the type and the labels of each metric on the page."""
    lines = (line.split("|") for line in PAGE.splitlines() if line.startswith("| `tuplewire_"))
    return {
        name.strip(" `"): (kind.strip(), set(re.findall(r"`(\w+)`", labels)))
        for _, name, kind, labels, *_ in lines
    }


def test_every_metric_has_its_row(tmp_path: Path) -> None:
    """Names, types and labels on the page are those of the worker, one with a certificate."""
    files = files_of(Authority().issue("worker.example"), tmp_path)
    secured = WorkerConfig(tls_ca=files.tls_ca, tls_certificate=files.tls_certificate, tls_key=files.tls_key)
    told = {}
    for family in [
        *families(2, 2, BOUNDED),
        *Security(secured).collect(),
        *LogOutput("info", "text").collect(),
    ]:
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        told[family.name + suffix] = (family.type, labels)
    kind, settings = told["tuplewire_config_info"]
    assert settings < settings_of(WorkerConfig).keys()
    told["tuplewire_config_info"] = (
        kind,
        set(),
    )  # it need not name them
    assert rows() == told
    names = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `tuplewire_")]
    assert len(names) == len(set(names))


def test_every_state_is_told() -> None:
    """The page says what each state means."""
    assert all(f"`{state.value}`" in PAGE for state in TimeState)


def test_series_are_bounded_by_the_settings() -> None:
    """The number of series does not depend on how many tasks and peers there are beyond the bounds."""
    counts = {
        sum(len(family.samples) for family in families(size, size, BOUNDED)) for size in (60, 600, 6000)
    }
    assert len(counts) == 1


def test_identities_are_told_to_everybody_or_nobody() -> None:
    """Where rules say who sees whom, the metrics name none."""

    def named(config: WorkerConfig) -> dict[tuple[str, str], float]:
        by_name = {family.name: family for family in families(1, 2, config)}
        samples = by_name["tuplewire_identity_sessions"].samples
        return {(each.labels["identity"], each.labels["state"]): each.value for each in samples}

    assert named(BOUNDED) == {
        ("token t0", "connected"): 2,
        ("token t0", "resumable"): 1,
        ("token t1", "connected"): 2,
        ("token t1", "resumable"): 1,
    }
    guarded = WorkerConfig(worker_id="w", permissions_file="rules.toml")
    assert named(guarded) == {("other", "connected"): 4, ("other", "resumable"): 2}


def test_nothing_is_left_out_of_the_sums() -> None:
    """What has no series of its own is in `other`."""
    by_name = {family.name: family for family in families(600, 600, BOUNDED)}
    for name, total in (
        ("tuplewire_queue_messages", 1800),
        ("tuplewire_peer_accepted_messages", 6000),
        ("tuplewire_pending_messages", 1800),
        ("tuplewire_task_received_messages", 4800),
        ("tuplewire_task_acknowledged_messages", 3000),
        ("tuplewire_received_messages", 5400),
        ("tuplewire_identity_sessions", 1800),
    ):
        assert sum(sample.value for sample in by_name[name].samples) == total, name
