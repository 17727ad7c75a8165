"""The admin port: /metrics for Prometheus, /livez and /readyz for Kubernetes. See docs/design/status.md."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tuplewire.text.events import event_logger
from tuplewire_service.metrics.http_server import HttpResponse, HttpServer

logger = event_logger(__name__)

_INDEX_TEXT = """Tuplewire worker

/metrics  counts and gauges, for Prometheus
/livez    200 if the event loop responds, else 503 and the problem
/readyz   200 when ready, else 503 and the reason
"""

ProblemProbe = Callable[[], str]
"""Returns an empty string, or one line that describes the problem. Called from any thread."""


class AdminServer(HttpServer):
    """Serves the admin port; see HttpServer."""

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        live_problem: ProblemProbe,
        ready_problem: ProblemProbe,
        *,
        exemplars: bool = False,
    ) -> None:
        self._registry = registry
        self._exemplars = exemplars
        self._scraped = threading.Event()
        pages = {
            "/": lambda _: HttpResponse(_INDEX_TEXT),
            "/metrics": self._metrics,
            "/livez": lambda _: _probe_response("live", live_problem),
            "/readyz": lambda _: _probe_response("ready", ready_problem),
        }
        advice = "stop the process there, or change --listen-admin; if it is a worker, also change --listen"
        super().__init__(listen, pages, "the admin port", advice)

    def wait_for_scrape(self, timeout: float) -> None:
        """Wait until a scrape that starts from now on is complete, at most `timeout` seconds."""
        self._scraped = threading.Event()  # a scrape in progress sets the previous event
        self._scraped.wait(timeout)

    def _metrics(self, headers: Message) -> HttpResponse:
        # Only exemplars need OpenMetrics. It takes 1.4 times the time of the plain text.
        encode, content_type = choose_encoder(headers.get("Accept", "") if self._exemplars else "")
        scraped = self._scraped  # before the values are read; see wait_for_scrape()
        try:
            body = encode(self._registry)
        except Exception:
            logger.exception("admin.scrape_failed")
            return HttpResponse("the scrape failed; see the log\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        return HttpResponse(body, content_type=content_type, on_sent=scraped.set)


def _probe_response(probe_name: str, probe: ProblemProbe) -> HttpResponse:
    if problem := probe():
        return HttpResponse(f"not {probe_name}: {problem}\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return HttpResponse(f"{probe_name}\n")
