"""The admin port: /metrics for Prometheus, /livez and /readyz for Kubernetes. See docs/design/status.md."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tuplewire.text.events import event_logger
from tuplewire_service.metrics.http_server import HttpAnswer, HttpServer

logger = event_logger(__name__)

_PATHS = """Tuplewire worker

/metrics  counts and gauges, for Prometheus
/livez    200 while the event loop turns
/readyz   200 when ready, else 503 and the reason
"""

Probe = Callable[[], str]
"""Returns an empty string, or one line that describes the problem. Called from any thread."""


class AdminServer(HttpServer):
    """Serves the admin port; see HttpServer."""

    def __init__(
        self, listen: str, registry: CollectorRegistry, live: Probe, ready: Probe, *, exemplars: bool = False
    ) -> None:
        self._registry = registry
        self._exemplars = exemplars
        self._scraped = threading.Event()
        pages = {
            "/": lambda _: HttpAnswer(_PATHS),
            "/metrics": self._metrics,
            "/livez": lambda _: _probed("live", live),
            "/readyz": lambda _: _probed("ready", ready),
        }
        advice = "stop what uses it, or choose another address with --admin"
        super().__init__(listen, pages, "the admin port", advice)

    def await_scrape(self, timeout: float) -> None:
        """Wait until a scrape that starts from now on is complete, at most `timeout` seconds."""
        self._scraped = threading.Event()  # a scrape in progress sets the previous event
        self._scraped.wait(timeout)

    def _metrics(self, headers: Message) -> HttpAnswer:
        # Only exemplars need OpenMetrics. It takes 1.4 times the time of the plain text.
        encode, content_type = choose_encoder(headers.get("Accept", "") if self._exemplars else "")
        scraped = self._scraped  # before the values are read; see await_scrape()
        try:
            body = encode(self._registry)
        except Exception:
            logger.exception("admin.scrape_failed")
            return HttpAnswer("the scrape failed; see the log\n", HTTPStatus.INTERNAL_SERVER_ERROR)
        return HttpAnswer(body, content_type=content_type, sent=scraped.set)


def _probed(word: str, probe: Probe) -> HttpAnswer:
    if trouble := probe():
        return HttpAnswer(f"not {word}: {trouble}\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return HttpAnswer(f"{word}\n")
