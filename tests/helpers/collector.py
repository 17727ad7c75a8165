"""A real OpenTelemetry Collector, and the spans that were exported through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from helpers import eventually
from helpers.ports import free_port
from helpers.served import JsonHandler, served
from helpers.tools import ROOT, missing, ran

BINARY = ROOT / "build" / "bin" / "collector"
_WAIT_SECONDS = 120.0
_RUN_SECONDS = 240.0

SEND = """
import sys, tuplewire
with tuplewire.Client(sys.argv[1], topology=sys.argv[2]) as client:
    client.send(int(sys.argv[3]), b"alone")
"""
"""The source of a program that sends one message. Its arguments: address, topology and task."""
RECEIVE = """
import sys, tuplewire
count, answer_to = int(sys.argv[4]), int(sys.argv[5])
with tuplewire.Client(sys.argv[1], topology=sys.argv[2]) as client:
    seen = 0
    with client.recv(int(sys.argv[3]), timeout=30) as batches:
        while seen < count:
            seen += len(next(batches))
            if answer_to >= 0:
                client.send(answer_to, b"an answer")
        batches.acknowledge()
"""
"""The source of a program that receives messages.

Its fourth argument is the number of messages. It answers each batch to its fifth argument, a task; -1 sends
no answers.
"""


@dataclass(frozen=True)
class SeenSpan:
    """A span as the collector read it. Times are in nanoseconds since 1970. links: ids of spans."""

    service: str
    instance: str
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    links: Sequence[str]
    about: dict[str, Any]


@dataclass
class Collector:
    """The received spans. variables: the environment of a process that exports its spans here."""

    variables: dict[str, str]
    spans: list[SeenSpan] = field(default_factory=list)

    def named(self, *names: str) -> list[SeenSpan]:
        """Return the spans with one of these names, by start time."""
        return sorted((each for each in list(self.spans) if each.name in names), key=lambda each: each.start)

    def trace(self, trace: str) -> list[SeenSpan]:
        """Return the spans of a trace, by start time."""
        return sorted((each for each in list(self.spans) if each.trace == trace), key=lambda each: each.start)

    def await_spans(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the received spans fulfil the condition."""
        eventually(condition, _WAIT_SECONDS, f"{what}; came: {sorted({each.name for each in self.spans})}")

    def run(self, name: str, text: str, *arguments: object, seconds: float = _RUN_SECONDS) -> None:
        """Run a program that creates spans until it exits. name: of the service; text: in Python."""
        environment = os.environ | self.variables | {"TUPLEWIRE_TRACING": "true", "OTEL_SERVICE_NAME": name}
        command = [sys.executable, "-c", text, *map(str, arguments)]
        done = ran(*command, env=environment, seconds=seconds)
        assert done.returncode == 0, done.stderr


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector. If its program is missing, the test is skipped loudly."""
    if not BINARY.exists():
        missing(f"{BINARY} is missing: an OpenTelemetry Collector, which make deploy-tools builds")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    found = Collector(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100", "NO_PROXY": "127.0.0.1"}
    )
    with _sink(found.spans) as sink, _running(port, sink) as process:
        eventually(lambda: _takes(url) or process.poll() is not None, _WAIT_SECONDS, "the collector listens")
        assert process.poll() is None, "the collector has ended; what it said is above"
        yield found


@contextmanager
def _running(port: int, sink: str) -> Iterator[subprocess.Popen[bytes]]:
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"otlp_http": {"endpoint": sink, "encoding": "json", "compression": "none"}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_http"]}},
        },
    }
    process = subprocess.Popen([BINARY, f"--config=yaml:{json.dumps(config)}"], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def _takes(url: str) -> bool:
    request = urllib.request.Request(  # noqa: S310 - our own
        f"{url}/v1/traces", b"{}", {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


@contextmanager
def _sink(spans: list[SeenSpan]) -> Iterator[str]:
    """Receive the spans that the collector forwards."""

    class Sink(JsonHandler, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            spans.extend(_read(json.loads(self.body())))
            self.answer(HTTPStatus.OK, {})

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Sink)) as server:
        server.daemon_threads = False
        yield f"http://127.0.0.1:{server.server_address[1]}"


def _read(request: dict[str, Any]) -> Iterator[SeenSpan]:
    for resource in request.get("resourceSpans", ()):
        who = _attributes(resource["resource"])
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield SeenSpan(
                    str(who["service.name"]),
                    str(who["service.instance.id"]),
                    span["name"],
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId", ""),
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    [each["spanId"] for each in span.get("links", ())],
                    _attributes(span),
                )


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in holder.get("attributes", ())}
