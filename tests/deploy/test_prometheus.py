"""A real Prometheus scrapes real workers under load: its metrics, rules and alerts."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, count
from typing import Any, NamedTuple

import pytest
import yaml
from helpers.admin import scrape
from helpers.manifests import CHART
from helpers.program import Program, Threads
from helpers.prometheus import PROMETHEUS, RATE_INTERVAL, Prometheus, promtool_accepts
from helpers.secured import Authority, tls_flags
from helpers.streams import unsteady_proxy
from helpers.topology import TOPOLOGY, assign, numbered, one_worker, ready
from helpers.traffic import Reader, client_of

from tuplewire import Client
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_service.metrics.families import exposed_names
from tuplewire_service.testing import eventually
from tuplewire_topology.coordination.executor_reports import metric_families

SECONDS = 60.0
TASKS = {0: range(10), 1: range(10, 20), 2: range(20, 30), 3: range(30, 40)}
READ = {1: 11, 2: 21}
"""Tasks with a consumer under load, by the number of their worker."""
STUCK = (5, 15)
"""Tasks without a consumer under load: one of the first worker and one of the second."""
COUNTED = 25
BATCH = 100
DASHBOARD = json.loads((CHART / "files" / "tuplewire.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]


class Scene(NamedTuple):
    """Four workers of one topology, another with TLS and without an assignment, and a Prometheus."""

    workers: list[Endpoint]
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Run them. The connection to the second worker breaks every other second."""
    folder = tmp_path_factory.mktemp("scene")
    certificate = Authority().issue("worker.example").write(folder / "tls")
    flags = ["--receive-queue-messages=2000"]
    with ExitStack() as stack:
        workers = stack.enter_context(WorkerProcesses(5, TOPOLOGY, flags=flags, drain_seconds=2)).endpoints
        secured = stack.enter_context(one_worker("secured", *tls_flags(certificate), directory=folder))
        unsteady = stack.enter_context(Program(unsteady_proxy, workers[1].address))
        reached = [*workers]
        reached[1] = replace(workers[1], address=unsteady.ask("address"))
        assign(workers[:4], 1, {reached[index]: tasks for index, tasks in TASKS.items()})
        assign(workers[4], 2, {workers[4]: [40]})
        ready(*workers, seconds=SECONDS)
        prometheus = stack.enter_context(Prometheus([*workers, secured], folder))
        yield Scene(workers, prometheus)


@pytest.fixture(scope="module")
def load(scene: Scene) -> Iterator[Scene]:
    """Send to two tasks with consumers, and to two tasks without."""
    threads = Threads()
    with ExitStack() as stack:
        readers = []
        for worker, task in READ.items():
            consumer = stack.enter_context(client_of(scene.workers[worker].address))
            readers.append(stack.enter_context(Reader(consumer.recv([task], timeout=1))))
        program = client_of(scene.workers[0].address, max_pending_task_messages=4 * BATCH)
        stack.callback(program.close, 0)  # messages without a consumer are dropped
        threads.start(_feed, threads, program)
        stack.callback(threads.end)
        for reader in readers:
            reader.has(1)  # all are connected, so the leak check blames no test for their threads
        yield scene
    assert threads.errors == []


def _feed(threads: Threads, program: Client) -> None:
    for number in count(0, BATCH):
        for task in (*READ.values(), *STUCK):
            program.try_send(numbered(task, range(number, number + BATCH)))
        if threads.stop.wait(0.02):
            return


def expressions(panel: dict[str, Any]) -> list[str]:
    """Return a panel's queries with the variables replaced: all workers, and the interval for a rate."""
    return [
        target["expr"]
        .replace("$__rate_interval", RATE_INTERVAL)
        .replace("$__range", RATE_INTERVAL)
        .replace("$worker", ".*")
        .replace("$namespace", ".*")
        for target in panel["targets"]
    ]


def test_targets_are_up(scene: Scene) -> None:
    """Every worker is a target with its id and namespace, and is up."""
    names = [*(worker.worker_id for worker in scene.workers), "secured"]
    wanted = {("tuplewire", "spark", name, "up") for name in names}

    def found() -> set[tuple[str, ...]]:
        return {
            (*(each["labels"][name] for name in ("job", "namespace", "worker")), each["health"])
            for each in scene.prometheus.targets()
        }

    eventually(lambda: found() == wanted, SECONDS, "all targets are up")


def test_received_is_what_was_sent(scene: Scene) -> None:
    """Prometheus counts exactly the messages that a program sent, at both workers on their path."""
    total = 12_345
    with (
        client_of(scene.workers[2].address) as consumer,
        Reader(consumer.recv([COUNTED], timeout=1)) as reader,
        client_of(scene.workers[0].address) as program,
    ):
        program.send(numbered(COUNTED, range(total)))
        program.flush(SECONDS)
        eventually(lambda: len(reader.got) == total, SECONDS, "everything is read")
    for worker, source in (("worker-0", "client"), ("worker-2", "worker-0")):
        scene.prometheus.until(
            f'tuplewire_received_messages_total{{worker="{worker}", source="{source}"}}',
            lambda samples: [value for _, value in samples] == [total],
        )


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_panels_have_data(load: Scene, panel: dict[str, Any]) -> None:
    """Every query of the dashboard is valid, and returns numbers under load."""
    for expression in expressions(panel):
        load.prometheus.until(expression, lambda samples: any(not math.isnan(value) for _, value in samples))


@pytest.mark.parametrize("query", [each["definition"] for each in DASHBOARD["templating"]["list"][1:]])
def test_variables_have_values(load: Scene, query: str) -> None:
    """The dashboard's variables for namespace, topology and worker have values."""
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    assert found
    load.prometheus.until(
        found[1].replace("$topology", TOPOLOGY).replace("$namespace", ".*"),
        lambda samples: (
            len([labels for labels, _ in samples if labels.get(found[2])]) == len(load.workers) + 1
        ),
    )


def test_names(load: Scene) -> None:
    """Every metric in the rules and the dashboard exists in a worker or an executor's process."""
    used = {
        name
        for expression in (*(rule["expr"] for rule in RULES), *chain.from_iterable(map(expressions, PANELS)))
        for name in re.findall(r"\b(?:tuplewire|process|python)_\w+|\b\w+:tuplewire_\w+:\w+", expression)
    }
    of_executors = {name for family in metric_families([], []) for name in exposed_names(family)}
    for rule in RULES:
        if "record" in rule:
            load.prometheus.until(rule["record"], bool)
    assert used - {*load.prometheus.names(), *of_executors} == set()


def test_promtool_finds_nothing(load: Scene) -> None:
    """Prometheus's own checker accepts names, types and help texts under load."""
    for worker in load.workers:
        promtool_accepts(scrape(worker.metrics_url))


@pytest.mark.parametrize(
    ("alert", "labels", "found"),
    [
        ("TuplewireBackpressured", ["worker"], {("worker-0",)}),
        ("TuplewireNoConsumer", ["worker"], {("worker-0",), ("worker-1",)}),
        ("TuplewireNotReady", ["worker"], {("secured",)}),
        ("TuplewireCertificateExpires", ["worker"], {("secured",)}),
        # One worker has a newer assignment than the others of its topology.
        ("TuplewireAssignmentsDiffer", ["topology"], {(TOPOLOGY,)}),
        # Both tasks without a consumer, local and remote, at the sending program's worker.
        ("TuplewireTaskBlocking", ["worker", "task"], {("worker-0", str(task)) for task in STUCK}),
    ],
)
def test_alerts_fire(load: Scene, alert: str, labels: list[str], found: set[tuple[str, ...]]) -> None:
    """Each alert fires for exactly the workers with a problem: see the scene and its load."""
    load.prometheus.until(
        f'ALERTS{{alertname="{alert}", alertstate="firing"}}',
        lambda samples: {tuple(each[label] for label in labels) for each, _ in samples} == found,
    )


def test_nothing_is_lost(load: Scene) -> None:
    """Every ledger is balanced at every scrape, and no message is dropped while a connection breaks."""
    load.prometheus.until(
        'sum(tuplewire_reconnects_total{peer="worker-1"})',
        lambda samples: any(value > 0 for _, value in samples),
    )
    for expression in (
        "max(max_over_time(abs(worker:tuplewire_unaccounted_messages:difference)[5m:1s]))",
        "sum(tuplewire_dropped_messages_total)",
    ):
        load.prometheus.until(expression, bool)
        assert [value for _, value in load.prometheus.query(expression)] == [0]


def test_a_worker_that_dies_is_told_of(load: Scene) -> None:
    """A killed worker is reported as down, both by Prometheus and by a worker connected to it."""
    os.kill(load.workers[3].process_id, signal.SIGKILL)
    eventually(
        lambda: (
            [each["annotations"]["summary"] for each in load.prometheus.firing("TuplewireWorkerDown")]
            == ["Worker worker-3 does not answer Prometheus."]
        ),
        SECONDS,
        "it is down, and no other",
    )
    load.prometheus.until(
        'ALERTS{alertname="TuplewirePeerDown", alertstate="firing", worker="worker-0"}',
        lambda samples: {labels["peer"] for labels, _ in samples} == {"worker-3"},
    )
