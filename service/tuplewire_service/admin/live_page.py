"""The live page of a worker: one HTML file, and the JSON that it reads each second.

Both are for this machine alone, and only to be read: see `Visit.problem`. What they show is what `GetStatus`
tells the same caller.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import heapq
import ipaddress
import json
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tuplewire.wire import control_pb2 as pb
from tuplewire_service.control.cluster_rows import ClusterRows, Look, TaskRow, cluster_rows
from tuplewire_service.control.rates import Interval
from tuplewire_service.security.guard import Caller

PAGE = Path(__file__).with_name("live_page.html")
_MOST_ROWS = 200
"""Of a kind: a browser is to stay quick with 10,000 tasks."""
_FRESH_SECONDS = 0.9
"""So long all who look see the same: the worker is asked no more often, whoever looks."""
_MOST_SHARE = 0.05
"""The most of its time that a worker spends on being looked at; with 10,000 tasks, a look takes 0.1 s."""

Ask = Callable[[], pb.GetStatusResponse]
"""Returns a worker's status with senders and consumers; TimeoutError when it does not answer."""
Admit = Callable[[Caller, Collection[str]], Collection[str]]
"""Returns those of some identities whose senders and consumers a caller may see; RefusedError for nobody."""


@dataclasses.dataclass(frozen=True, slots=True)
class Visit:
    """A request as it came. host: its address. headers: names in lower case."""

    host: str
    headers: Mapping[str, str]

    @property
    def problem(self) -> str:
        """Why it gets nothing; empty: it may ask.

        Only this machine may ask: an admin port has no TLS. A web page of elsewhere must not ask in the name
        of whoever looks at it, by a name of its own for this machine, either.
        """
        if not _is_here(self.host):
            return "the page is for the worker's own machine: use kubectl port-forward, or ssh -L"
        name = re.sub(r":\d+$", "", self.headers.get("host", ""))
        if not (name == "localhost" or _is_here(name.strip("[]"))):
            return f"the page is asked for by the name {name[:100]!r}: use localhost"
        if self.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            return "another web site has asked for it"
        return ""

    @property
    def caller(self) -> Caller:
        """Who asks, for a guard."""
        return Caller(f"ipv4:{self.host}:0", shown=self.headers.get("authorization"))


def _is_here(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


class LivePage:
    """Answers the page's questions; from any thread."""

    def __init__(self, ask: Ask, admit: Admit, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._admit = admit
        self._clock = clock
        self._lock = threading.Lock()
        self._due = 0.0
        self._now: pb.GetStatusResponse | None = None
        self._before: pb.GetStatusResponse | None = None
        self._rows = ClusterRows()

    def json(self, visit: Visit) -> bytes:
        """Return the worker as the caller may see it.

        Raises UnauthenticatedError without a token where one is asked for, PermissionDeniedError, and
        TimeoutError when the worker does not answer.
        """
        self._admit(visit.caller, ())
        status, before, rows = self._look()
        whos = {each.who for each in rows.senders} | {each.who for each in rows.consumers}
        seen = self._admit(visit.caller, whos)
        counts = {
            "tasks": len(rows.tasks),
            "peers": len(rows.peers),
            "senders": status.connected_sessions + status.remembered_sessions,
            "consumers": status.subscribed_consumers,
        }
        told: dict[str, Any] = {
            "topology": status.topology,
            "ledger": {
                "accepted": status.ledger.accepted,
                "acknowledged": status.ledger.acknowledged,
                "dropped": dict(status.ledger.dropped),
                "pending": status.ledger.pending,
            },
            "states": Interval(before, status).shares(status),
            "counts": counts,
            "workers": rows.workers,
            "tasks": heapq.nlargest(_MOST_ROWS, rows.tasks, key=_weight),
            "peers": rows.peers[:_MOST_ROWS],
            "senders": [each for each in rows.senders if each.who in seen][:_MOST_ROWS],
            "consumers": [each for each in rows.consumers if each.who in seen][:_MOST_ROWS],
            "losses": rows.losses,
            "blocking": rows.blocking,
        }
        return json.dumps(told, default=dataclasses.asdict).encode()

    def _look(self) -> tuple[pb.GetStatusResponse, pb.GetStatusResponse | None, ClusterRows]:
        with self._lock:
            began = self._clock()
            if self._now is None or began >= self._due:
                self._now, self._before = self._ask(), self._now
                self._rows = cluster_rows([Look(self._now.worker_id, "", self._now, self._before)])
                self._due = began + max(_FRESH_SECONDS, (self._clock() - began) / _MOST_SHARE)
            return self._now, self._before, self._rows


def _weight(task: TaskRow) -> tuple[float, float, float, int]:
    """Return how much a task is to be seen: who blocks, then who is busy."""
    return task.blocking, task.load, task.received_rate or 0.0, -task.task


@cache
def page() -> tuple[bytes, Mapping[str, str]]:
    """Return the page, and the headers that let it do nothing but what it is for."""
    text = PAGE.read_text(encoding="utf-8")
    script, style = (
        base64.b64encode(
            hashlib.sha256(text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].encode()).digest()
        ).decode()
        for tag in ("script", "style")
    )
    return text.encode(), {
        "Content-Security-Policy": (
            f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
