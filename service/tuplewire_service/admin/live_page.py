"""The live page of a worker and its cluster: one HTML file, and the JSON that it reads each second.

Both are for this machine alone, and only to be read: see `Visit.problem`. What they show of the worker is
what `GetStatus` tells the same caller. Of others they show what those tell this worker: senders and consumers
only where the caller may see them here, too.
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
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from tuplewire.errors import UnreachableError
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.control.cluster_looks import ClusterLooks, IAsked
from tuplewire_service.control.cluster_rows import ClusterRows, Look, TaskRow, cluster_rows
from tuplewire_service.security.guard import Caller

PAGE = Path(__file__).with_name("live_page.html")
_MOST_ROWS = 200
"""Of a kind: a browser is to stay quick with 10,000 tasks."""
_PACE_SECONDS = 3.0
"""So long all who look see the same: the workers are asked no more often, whoever looks."""
_SLOWEST_SECONDS = 15.0
_MOST_SHARE = 0.0005
"""The most of its time that the worker makes rows, as long as looks come no slower than that."""
_PATIENCE_SECONDS = 1.0
"""So long other workers have to answer; who takes longer is told of at the look after."""
_IDLE_SECONDS = 15.0
"""After so long without anybody who looks, nothing is asked and no connection is kept."""
_Answer = TypeVar("_Answer")

Ask = Callable[[int | None], pb.GetStatusResponse]
"""Returns a worker's status with at most so many tasks; TimeoutError when it does not answer."""
Admit = Callable[[Caller, Collection[str]], Collection[str]]
"""Returns those of some identities whose senders and consumers a caller may see; RefusedError for nobody."""


class Here(IAsked):
    """The worker itself, as it is asked for its own page."""

    def __init__(self, ask: Ask, assignment: Callable[[], pb.Assignment | None]) -> None:
        self.address = ""
        self._ask = ask
        self._assignment = assignment

    def status(
        self,
        most_clients: int = 0,  # noqa: ARG002 - it tells as many as it does
        most_tasks: int | None = None,
    ) -> pb.GetStatusResponse:
        """See IAsked."""
        return self._answer(lambda: self._ask(most_tasks))

    def assignment(self) -> pb.Assignment | None:
        """See IAsked."""
        return self._answer(self._assignment)

    def close(self) -> None:
        """See IAsked."""

    @staticmethod
    def _answer(ask: Callable[[], _Answer]) -> _Answer:
        try:
            return ask()
        except TimeoutError as error:
            raise UnreachableError("the worker does not answer") from error


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
    """Answers the page's questions; from any thread. close() ends it."""

    def __init__(
        self,
        here: Here,
        connect: Callable[[str], IAsked],
        admit: Admit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show a worker and those that its assignment names. connect: returns what asks one of these."""
        self._here = here
        self._connect = connect
        self._admit = admit
        self._clock = clock
        self._lock = threading.Lock()
        self._due = self._asked = 0.0
        self._pace = _PACE_SECONDS
        self._looks: ClusterLooks | None = None
        self._seen: _Seen | None = None
        self._closed = False

    def json(self, visit: Visit) -> bytes:
        """Return the cluster as the caller may see it, this worker first.

        Raises UnauthenticatedError without a token where one is asked for, PermissionDeniedError, and
        UnreachableError when the worker does not answer.
        """
        self._admit(visit.caller, ())
        seen = self._look()
        rows = seen.rows
        whos = {each.who for each in rows.senders} | {each.who for each in rows.consumers}
        visible = self._admit(visit.caller, whos)
        return json.dumps(
            {
                **seen.told,
                "pace": self._pace,
                "senders": [each for each in rows.senders if each.who in visible][:_MOST_ROWS],
                "consumers": [each for each in rows.consumers if each.who in visible][:_MOST_ROWS],
            },
            default=_fields,
        ).encode()

    def _look(self) -> _Seen:
        with self._lock:
            now = self._asked = self._clock()
            if self._seen is None or now >= self._due:
                if self._closed:
                    raise UnreachableError("the worker is ending")
                if self._looks is None:
                    self._looks = ClusterLooks(self._here, self._connect, _MOST_ROWS)
                looks = self._looks.look(_PATIENCE_SECONDS)
                began = time.thread_time()
                self._seen = _seen(looks)
                spent = (time.thread_time() - began) / _MOST_SHARE
                self._pace = round(min(max(_PACE_SECONDS, spent), _SLOWEST_SECONDS), 1)
                self._due = now + 0.9 * self._pace  # a browser may be early
            return self._seen

    def rest(self) -> None:
        """Let the other workers go, once nobody has looked for a while; to be called now and then."""
        if self._looks is not None and self._clock() - self._asked > _IDLE_SECONDS:
            self._let_go()

    def close(self) -> None:
        """Ask nobody any more."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            looks, self._looks, self._seen = self._looks, None, None
        if looks is not None:
            looks.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """A cluster at one moment. told: what everybody may see of it."""

    rows: ClusterRows
    told: Mapping[str, Any]


def _seen(looks: Sequence[Look]) -> _Seen:
    here = looks[0]
    if here.now is None:
        raise UnreachableError(here.problem)
    rows = cluster_rows(looks)
    answered = [each.now for each in looks if each.now is not None]
    dropped: Counter[str] = Counter()
    for each in answered:
        dropped.update(dict(each.ledger.dropped))
    return _Seen(
        rows,
        {
            "topology": here.now.topology,
            "worker": here.now.worker_id,
            "ledger": {
                "accepted": sum(each.ledger.accepted for each in answered),
                "acknowledged": sum(each.ledger.acknowledged for each in answered),
                "dropped": dropped,
                "pending": sum(each.ledger.pending for each in answered),
            },
            "counts": {
                "tasks": sum(each.tasks for each in rows.workers),
                "peers": len(rows.peers),
                "executors": len(rows.executors),
                "senders": sum(each.connected_sessions + each.remembered_sessions for each in answered),
                "consumers": sum(each.subscribed_consumers for each in answered),
            },
            "components": rows.components,
            "edges": rows.edges,
            "executors": heapq.nlargest(_MOST_ROWS, rows.executors, key=attrgetter("busy", "held_up")),
            "workers": rows.workers[:_MOST_ROWS],
            "tasks": heapq.nlargest(_MOST_ROWS, rows.tasks, key=_weight),
            "peers": rows.peers[:_MOST_ROWS],
            "losses": rows.losses[:_MOST_ROWS],
            "blocking": rows.blocking,
        },
    )


def _weight(task: TaskRow) -> tuple[float, float, float, int]:
    """Return how much a task is to be seen: who blocks, then who is busy."""
    return task.blocking, task.load, task.received_rate or 0.0, -task.task


def _fields(row: Any) -> dict[str, Any]:
    """Return the fields of a row, as they are: `asdict` copies each value, and takes six times as long."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


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
