"""The live page of `tuplewire top --web`: one HTML file, and the JSON that it polls.

It is served on this machine only, by the user's process, which polls workers with the user's certificate and
token. So the page shows the same data as `tuplewire top`. Used by inspection_commands.py. Owns the server and
the last data. Thread-safe. Design: docs/design/status.md.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from email.message import Message
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tuplewire.errors import TuplewireError
from tuplewire_service.command.viewer.cluster_rows import TABLES, cluster_rows
from tuplewire_service.command.viewer.columns import select_rows
from tuplewire_service.command.viewer.rates import WorkerSample
from tuplewire_service.metrics.http_server import HttpResponse, HttpServer

PAGE = Path(__file__).with_name("live_page.html")
MAX_ROWS = 100  # of each kind, so that a browser stays fast with 10,000 tasks


class LivePage(AbstractContextManager["LivePage"]):
    """Serves the page on 127.0.0.1 in its own threads, from the construction until the end of the block.

    `url` is the link to the page. It contains a token, which the server requires for data of the cluster.
    """

    def __init__(self, poll: Callable[[], Sequence[WorkerSample]], port: int, interval: float) -> None:
        """Listen. Raise BindError if the port is in use. The port 0 selects a free one.

        `poll` returns the state of each worker, and is called from one thread at a time: once in `interval`
        seconds, regardless of the number of browsers.
        """
        self._poll = poll
        self._interval = interval
        self._token = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._json = b""
        self._polled_at = float("-inf")
        pages = {"/": lambda _: _page_response(), "/live.json": self._live}
        self._server = HttpServer(f"127.0.0.1:{port}", pages, "the page", "choose another --port")
        # Browsers send no fragment (#), so the token is not part of a request's path.
        self.url = f"http://{self._server.address}/#token={self._token}"

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _live(self, headers: Message) -> HttpResponse:
        authorization = headers.get("Authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode()):
            return HttpResponse("use the link that the command printed\n", HTTPStatus.UNAUTHORIZED)
        try:
            with self._lock:
                # 0.9: a browser may poll a little early, and must not get old data.
                if time.monotonic() - self._polled_at > 0.9 * self._interval:
                    contents = {"pace": self._interval, **_page_data(self._poll())}
                    self._json = json.dumps(contents, default=_fields).encode()
                    self._polled_at = time.monotonic()
                return HttpResponse(self._json, content_type="application/json")
        except TuplewireError as error:  # the first worker has never answered
            return HttpResponse(f"{error}\n", HTTPStatus.SERVICE_UNAVAILABLE)


def _page_data(samples: Sequence[WorkerSample]) -> dict[str, Any]:
    """Return the data of the page: the most important rows of each kind."""
    rows = cluster_rows(samples)
    alive = [each.status for each in samples if each.status is not None]
    dropped = Counter[str]()
    for each in alive:
        dropped.update(each.ledger.dropped)
    return {
        "topology": next((known.topology for each in samples if (known := each.status or each.previous)), ""),
        "worker": samples[0].worker,
        "ledger": {
            "accepted": sum(each.ledger.accepted for each in alive),
            "acknowledged": sum(each.ledger.acknowledged for each in alive),
            "dropped": dropped,
            "pending": sum(each.ledger.pending for each in alive),
        },
        "counts": {
            "tasks": sum(each.task_count for each in rows.workers),
            "peers": len(rows.peers),
            "executors": len(rows.executors),
            "senders": sum(each.connected_session_count + each.disconnected_session_count for each in alive),
            "consumers": sum(each.subscribed_consumer_count for each in alive),
            "workers": len(rows.workers),
            "losses": len(rows.losses),
        },
        "components": rows.components,
        "edges": rows.edges,
        **{name: select_rows(getattr(rows, name))[:MAX_ROWS] for name in TABLES},
        "workers": rows.workers[:MAX_ROWS],  # the page describes the first one
        "problems": rows.problems,
    }


def _fields(row: Any) -> dict[str, Any]:
    """Return the fields of a row, without the deep copy of `asdict`."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


@cache
def _page_response() -> HttpResponse:
    """Return the page, with headers that restrict it to its own script, style and data."""
    text = PAGE.read_text(encoding="utf-8")
    script, style = (
        base64.b64encode(
            hashlib.sha256(text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].encode()).digest()
        ).decode()
        for tag in ("script", "style")
    )
    policy = (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        ("Content-Security-Policy", policy),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )
    return HttpResponse(text, content_type="text/html; charset=utf-8", headers=headers)
