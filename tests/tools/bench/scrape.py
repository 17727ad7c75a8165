"""The row of metrics: the time to scrape a worker with many tasks."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import replace

from agent import BenchError
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from report import Line, compared, progress
from workload import TOPOLOGY

from tuplewire.processes.worker_processes import WorkerProcesses

SCRAPE = "scrape"

_TASKS = 2_500
"""Each task has four series."""
_SERIES = 4 * _TASKS
_ROUNDS = 30
_TARGET_MS = 50.0


def measure_scrape(*_: object) -> list[Line]:
    """Scrape a worker, and prometheus-client with the same number of series, in turns."""
    progress(f"scraping {_SERIES:,} series, {_ROUNDS} times")
    registry = CollectorRegistry()
    gauge = Gauge("queue_messages", "Messages in a task's receive queue.", ["task"], registry=registry)
    for task in range(_SERIES):
        gauge.labels(str(task)).set(task)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        with WorkerProcesses(1, TOPOLOGY, flags=[f"--metrics-series={_TASKS}"]) as workers:
            workers.assign({0: range(_TASKS)})
            ours = workers.endpoints[0].metrics_url
            bare = f"http://127.0.0.1:{server.server_port}/metrics"
            pairs = [(_scrape(ours), _scrape(bare)) for _ in range(_ROUNDS)]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    title = f"a scrape of a worker with {_TASKS:,} tasks, {_SERIES:,} series"
    line = compared(SCRAPE, title, "ms", pairs, "prometheus-client, as many series")
    verdict = "met" if line.value <= _TARGET_MS else "missed"
    return [replace(line, target=f"<= {_TARGET_MS:.0f} ms", verdict=verdict)]


def _scrape(url: str) -> float:
    """Return the time of a scrape in milliseconds."""
    asked = {"Accept": "text/plain; version=0.0.4"}  # the format of workers without tracing
    request = urllib.request.Request(url, headers=asked)  # noqa: S310 - our own address
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own address
        series = sum(not line.startswith(b"#") for line in answer.read().splitlines())
    taken = time.perf_counter() - began
    if series < _SERIES:
        raise BenchError(f"{url} returns {series} of {_SERIES} series")
    return taken * 1000
