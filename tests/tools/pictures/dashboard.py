"""Draws the dashboard for the docs: real workers, a real Prometheus, and Grafana's panels (panels.js)."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers import eventually
from helpers.browser import browser
from helpers.manifests import CHART
from helpers.ports import free_port
from helpers.program import Threads
from helpers.prometheus import RATE_INTERVAL, Prometheus
from helpers.restartable import RestartableWorker
from helpers.secured import Authority, tls_flags
from helpers.topology import assignment_file, numbered, one_worker
from helpers.traffic import client_of

from tuplewire import Client
from tuplewire.errors import BufferFullError, FlushTimeoutError, TuplewireError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.settings.addresses import split_host_port

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
PANELS = ROOT / "build" / "pictures" / "panels.js"
PICTURES = {
    "dashboard-flow.png": ("Overview", "Throughput", "Ledger"),
    "dashboard-tasks.png": ("Queues", "Tasks", "Sessions and windows", "Failures", "Dead letters"),
    "dashboard-time.png": ("Latency", "Time", "Peers"),
}
REST = "dashboard-process.png"
"""Contains all other rows."""
SECONDS, STEP_SECONDS = 180, 2
SLOW_TASK = 12
_BOUND = ["--receive-queue-messages=2000"]
SLOW = range(50, 100)
"""The seconds during which its consumer stalls."""
KILLED_AT = 130


class Load:
    """Programs that send to 30 tasks of three workers, and consume them, until the end of the block."""

    def __init__(self, workers: list[RestartableWorker]) -> None:
        self._workers = workers
        self._began = time.monotonic()
        self._threads = Threads()
        self._ended = self._threads.stop

    def __enter__(self) -> None:
        for number in range(3):
            tasks = [task for task in range(10 * number, 10 * number + 10) if task != SLOW_TASK]
            self._threads.start(self._read, number, f"store-{number}", tasks)
            self._threads.start(self._send, number)
        self._threads.start(self._read, 1, "audit", [SLOW_TASK], SLOW)
        self._threads.start(self._come_and_go)

    def __exit__(self, *_: object) -> None:
        self._threads.end()

    @property
    def seconds(self) -> float:
        """The time since the start, in seconds."""
        return time.monotonic() - self._began

    def _address(self, number: int) -> str:
        return self._workers[number].endpoint.address

    def _read(self, number: int, client_id: str, tasks: list[int], slow: range = range(0)) -> None:
        with client_of(self._address(number), client_id=client_id) as client:
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError, TuplewireError), client.recv(tasks, timeout=1) as got:
                    for _ in got:
                        while int(self.seconds) in slow and not self._ended.wait(0.1):
                            pass
                        if self._ended.is_set():
                            return

    def _send(self, number: int) -> None:
        client = client_of(self._address(number), client_id=f"orders-{number}", max_pending_task_messages=500)
        count = 0
        while not self._ended.wait(0.02):
            for task in range(30):
                with contextlib.suppress(BufferFullError):
                    client.try_send(numbered(task, range(count, count + 1 + task % 7)))
            count += 7
        with contextlib.suppress(FlushTimeoutError):
            client.close(0.5)

    def _come_and_go(self) -> None:
        """Run a series of clients that close after some seconds."""
        there: list[Client] = []
        while not self._ended.wait(1):
            client = client_of(self._address(0), client_id=f"job-{len(there)}")
            client.send(1, b"x")
            there.append(client)
            if len(there) > 8:
                there[-8].close(1)
        for each in there:
            each.close(1)


def knock(address: str, ended: threading.Event) -> None:
    """Start TLS handshakes with a worker repeatedly, as a stranger."""
    host, port = split_host_port(address)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while not ended.wait(0.5):
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, port), 5) as plain,
            context.wrap_socket(plain),
        ):
            pass


@contextmanager
def scene(directory: Path) -> Iterator[tuple[Prometheus, list[RestartableWorker]]]:
    """Run three workers, a fourth one with TLS, and Prometheus."""
    with ExitStack() as stack:
        certificate = Authority().issue("worker.example").write(directory / "tls")
        workers = [
            stack.enter_context(
                RestartableWorker(
                    f"exec-{number}",
                    directory,
                    directory / "assignment.json",
                    [
                        f"--listen-admin=127.0.0.1:{free_port()}",
                        f"--state-file={directory / f'exec-{number}.state'}",
                        *_BOUND,
                        "--drain-seconds=1",
                    ],
                )
            )
            for number in (1, 2, 3)
        ]
        secured = stack.enter_context(
            one_worker("secured", *tls_flags(certificate), *_BOUND, directory=directory)
        )
        shares: dict[Endpoint, range] = {
            each.endpoint: range(10 * number, 10 * number + 10) for number, each in enumerate(workers)
        }
        assignment_file(directory, 1, shares)
        for each in workers:
            each.wait_ready()
        stranger = Threads()
        stranger.start(knock, secured.address, stranger.stop)
        stack.callback(stranger.end)
        yield stack.enter_context(Prometheus([*shares, secured], directory)), workers


def answers(prometheus: Prometheus, panel: dict[str, Any], began: float, ended: float) -> list[Any]:
    """Return the answers of Prometheus to the queries of a panel."""
    variables = {"$__rate_interval": RATE_INTERVAL, "$__range": f"{int(ended - began)}s"}
    variables |= dict.fromkeys(("$namespace", "$worker"), ".*")
    now = panel["type"] != "timeseries"
    found = []
    for target in panel.get("targets", ()):
        expression: str = target["expr"]
        for name, value in variables.items():
            expression = expression.replace(name, value)
        found.append(prometheus.range(expression, began, ended, STEP_SECONDS, now=now))
    return found


def draw(panels: list[dict[str, Any]], directory: Path, began: float, ended: float) -> None:
    """Draw the rows of each picture."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in panels:
        if each["panel"]["type"] == "row":
            rows[each["panel"]["title"]] = []
        rows[next(reversed(rows))].append(each)
    named = {title for titles in PICTURES.values() for title in titles}
    rest = tuple(title for title in rows if title not in named)
    for name, titles in {**PICTURES, REST: rest}.items():
        shown = [each for title in titles for each in rows[title]]
        given = json.dumps({"panels": shown, "from": began, "to": ended}).replace("</", "<\\/")
        page = directory / "page.html"
        page.write_text(
            '<!doctype html><meta charset="utf-8">'
            f'<link rel="stylesheet" href="{PANELS.with_suffix(".css").as_uri()}"><body>'
            f'<script src="{PANELS.as_uri()}"></script><script>draw({given})</script>',
            encoding="utf-8",
        )
        with browser(directory / name.partition(".")[0]) as tab:
            tab.resize(1200, 400)
            tab.open(page.as_uri())
            wanted = sum(each["panel"]["type"] == "timeseries" for each in shown)
            eventually(
                lambda tab=tab, wanted=wanted: (  # type: ignore[misc]
                    tab.value("document.querySelectorAll('canvas').length") >= wanted
                ),
                60,
                f"{wanted} panels are drawn; {tab.complaints}",
            )
            tab.picture(IMAGES / name)


def main() -> None:
    """Run the scene for three minutes, and draw it."""
    dashboard = json.loads((CHART / "files" / "tuplewire.json").read_text(encoding="utf-8"))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made,
        scene(Path(made)) as (prometheus, workers),
    ):
        load = Load(workers)
        with load:
            time.sleep(KILLED_AT)
            workers[2].kill()
            workers[2].start()
            time.sleep(max(0.0, SECONDS - load.seconds))
            ended = time.time()
            began = ended - SECONDS + 10
            panels = [
                {"panel": each, "answers": answers(prometheus, each, began, ended)}
                for each in dashboard["panels"]
            ]
        draw(panels, Path(made), began, ended)


if __name__ == "__main__":
    main()
