"""The metrics page lists exactly the metrics of a worker, with types and labels."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.secured import Authority, files_of
from prometheus_client.metrics_core import Metric

import tuplewire
from tuplewire.session.durations import BOUNDS
from tuplewire.settings.settings import settings_of
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.config.worker_config import WorkerConfig
from tuplewire_service.control.log_output import LogOutput
from tuplewire_service.metrics.worker_metrics import WorkerCollector
from tuplewire_service.process.worker_security import Security
from tuplewire_service.worker.timekeeper import TimeState

BOUNDED = WorkerConfig(worker_id="w", metrics_series=20)
PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def status(tasks: int, peers: int) -> pb.GetStatusResponse:
    """Return a worker with these numbers of tasks and peers, each with non-zero metrics."""
    ledger = pb.Ledger(accepted=10, acknowledged=6, dropped={"closed": 1}, pending=3)
    found = pb.GetStatusResponse(worker_id="w", incarnation=1, topology="t", version=tuplewire.__version__)
    found.MergeFrom(pb.GetStatusResponse(state=pb.WORKER_STATE_READY, ledger=ledger, local_task_count=tasks))
    found.assignment_version = found.newest_assignment_version = 1
    for number in range(peers):
        about = {"worker_id": f"w{number}", "address": "host:1", "connection_number": number}
        found.peers.add(**about, connected=True, ledger=ledger, sent_messages=9, sent_frames=1, sent_bytes=90)
        found.received.add(source=f"w{number}", messages=9, frames=1, bytes=90)
        found.possibly_lost_messages[f"w{number}"] = 2
        found.identities[f"token t{number}"].MergeFrom(pb.IdentitySessions(sharing=2, resumable=1))
    for task in range(tasks):
        counts = {
            "queued_messages": 3,
            "queued_bytes": 30,
            "acknowledged_messages": 5,
            "received_messages": 8,
        }
        found.tasks.add(task=task, **counts, load=0.03, subscribed=True, base_sequence=2, oldest_seconds=1.5)
    found.sharing_session_count, found.resumable_session_count, found.smallest_window_messages = 3, 2, 64
    found.state_seconds.update({state.value: 1.0 for state in TimeState})
    found.blocking.add(task="1", place="local", seconds=0.5)
    for latency in (found.queue_wait, found.send_to_ack, found.end_to_end, found.loop_lag):
        latency.MergeFrom(pb.Latency(bound_seconds=BOUNDS, counts=[0] * (len(BOUNDS) + 1)))
    found.sinks.MergeFrom(pb.SinkStatus(memory_bytes=1, disk_bytes=2, waiting_messages=3, waits=4))
    found.rejections, found.rejected_waiting_messages, found.dead_letter_task = 5, 1, 9
    return found


def families(tasks: int, peers: int, config: WorkerConfig) -> list[Metric]:
    """Return the metrics of a worker with these numbers of tasks and peers."""
    return list(WorkerCollector(lambda: status(tasks, peers), config, 2**30).collect())


def rows() -> dict[str, tuple[str, set[str]]]:
    """Return the type and the labels of each metric on the page."""
    lines = (line.split("|") for line in PAGE.splitlines() if line.startswith("| `tuplewire_"))
    return {
        name.strip(" `"): (kind.strip(), set(re.findall(r"`(\w+)`", labels)))
        for _, name, kind, labels, *_ in lines
    }


def test_every_metric_has_its_row(tmp_path: Path) -> None:
    """The page has names, types and labels of all metrics of a worker with a certificate, and the states."""
    files = files_of(Authority().issue("worker.example"), tmp_path)
    secured = WorkerConfig(tls_ca=files.tls_ca, tls_certificate=files.tls_certificate, tls_key=files.tls_key)
    told = {}
    others = [*Security(secured).collect(), *LogOutput("info", "text").collect()]
    for family in [*families(2, 2, BOUNDED), *others]:
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        told[family.name + suffix] = (family.type, labels)
    kind, settings = told["tuplewire_config_info"]
    assert settings < settings_of(WorkerConfig).keys()
    told["tuplewire_config_info"] = (kind, set())  # the page does not list the labels
    assert rows() == told
    names = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `tuplewire_")]
    assert len(names) == len(set(names))
    assert all(f"`{state.value}`" in PAGE for state in TimeState)


def test_series_are_bounded_by_the_settings() -> None:
    """The number of series does not grow with the number of tasks and peers beyond the limits."""
    counts = {
        sum(len(family.samples) for family in families(size, size, BOUNDED)) for size in (60, 600, 6000)
    }
    assert len(counts) == 1


def test_identities_are_told_to_everybody_or_nobody() -> None:
    """If permission rules restrict identities, the metrics name none of them."""

    def named(config: WorkerConfig) -> dict[tuple[str, str], float]:
        by_name = {family.name: family for family in families(1, 2, config)}
        samples = by_name["tuplewire_identity_senders"].samples
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
    """Values without a separate series are included in `other`."""
    by_name = {family.name: family for family in families(600, 600, BOUNDED)}
    for name, total in (
        ("tuplewire_queue_messages", 1800),
        ("tuplewire_peer_accepted_messages", 6000),
        ("tuplewire_peer_pending_messages", 1800),
        ("tuplewire_task_received_messages", 4800),
        ("tuplewire_task_acknowledged_messages", 3000),
        ("tuplewire_received_messages", 5400),
        ("tuplewire_identity_senders", 1800),
    ):
        assert sum(sample.value for sample in by_name[name].samples) == total, name
