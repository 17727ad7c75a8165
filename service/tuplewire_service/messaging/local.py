"""The local transport: workers of one process, without a wire.

Source: Storm's `messaging.local.Context` (LocalServer, LocalClient). Batches pass by reference, so that
nothing can be lost, doubled or reordered on the way; a registry that all contexts of the process share joins
the two sides. What is sent before the server is bound, or has its callback, waits and is then delivered.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tuplewire.config import Overflow, SessionSettings
from tuplewire.errors import BindError, BufferFullError, ClosedError, ConfigError, TuplewireError
from tuplewire.group import TaskGroup, check_sizes, first_worker, lane_of, task_and_via
from tuplewire.message import TaskMessage, as_groups
from tuplewire.session.ledger import DropReason, Ledger, Settled
from tuplewire.session.overflow import excess
from tuplewire.session.pieces import cut_off
from tuplewire_service.messaging.base import (
    BLOCK,
    ClientStatistics,
    ConnectionStatus,
    IConnectionCallback,
    IContext,
    Intake,
    IRelayConnection,
    IServerConnection,
    ReceiveCount,
    ReceivedBatch,
    ServerStatistics,
    by_via,
    via_of,
)
from tuplewire_service.messaging.inbox import Inbox

_PREFIX = "tuplewire.local."
_FIRST_EPHEMERAL_PORT = 49152


class _Endpoint:
    """What stands at one (topology, port): a server or nobody yet, and its clients."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.server: LocalServer | None = None
        self.clients: list[LocalClient] = []
        self.loads: dict[int, float] = {}


class _Registry:
    """Every endpoint of the process. Source: Storm's `queues-map`, keyed by topology and port."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: dict[tuple[str, int], _Endpoint] = {}

    def endpoint(self, topology: str, port: int) -> _Endpoint:
        with self._lock:
            return self._endpoints.setdefault((topology, port), _Endpoint())

    def bind(self, topology: str, port: int, server: LocalServer) -> tuple[int, _Endpoint]:
        with self._lock:
            if port == 0:
                port = _FIRST_EPHEMERAL_PORT
                while self._is_bound(topology, port):
                    port += 1
            elif self._is_bound(topology, port):
                raise BindError(f"port {port} of topology {topology!r} is bound in this process already")
            endpoint = self._endpoints.setdefault((topology, port), _Endpoint())
            endpoint.server = server
            return port, endpoint

    def _is_bound(self, topology: str, port: int) -> bool:
        endpoint = self._endpoints.get((topology, port))
        return endpoint is not None and endpoint.server is not None


_registry = _Registry()


class LocalContext(IContext):
    """Binds and connects within the process; all its instances share one registry."""

    def __init__(self) -> None:
        self._worker_id = ""
        self._session = SessionSettings()
        self._made: list[LocalServer | LocalClient] = []

    def prepare(self, conf: Mapping[str, Any]) -> None:
        """See IContext. Keys: `tuplewire.local.worker_id`, `tuplewire.local.session` (SessionSettings)."""
        for key in conf:
            if key.startswith(_PREFIX) and key.removeprefix(_PREFIX) not in {"worker_id", "session"}:
                raise ConfigError(f"unknown setting {key!r}; known are: {_PREFIX}worker_id, {_PREFIX}session")
        self._worker_id = conf.get(_PREFIX + "worker_id", "")
        self._session = conf.get(_PREFIX + "session", self._session)

    def bind(
        self, topology_id: str, port: int, callback: IConnectionCallback | None = None
    ) -> IServerConnection:
        """See IContext. Raises BindError when the port of this topology is bound."""
        server = LocalServer(topology_id, port, callback)
        self._made.append(server)
        return server

    def connect(self, topology_id: str, host: str, port: int) -> LocalClient:
        """See IContext. The host does not matter: everything is here."""
        del host
        endpoint = _registry.endpoint(topology_id, port)
        client = LocalClient(endpoint, port, self._worker_id or "client", self._session)
        self._made.append(client)
        return client

    def term(self) -> None:
        """See IContext."""
        made, self._made = self._made, []
        for connection in reversed(made):
            connection.close()


class LocalServer(IServerConnection):
    """The bound side."""

    def __init__(self, topology: str, port: int, callback: IConnectionCallback | None) -> None:
        self._inbox = Inbox(self._opened)
        self._received: dict[str, list[int]] = {}
        self.refused: Counter[str] = Counter()
        self._status = ConnectionStatus.READY
        self._port, self._endpoint = _registry.bind(topology, port, self)
        if callback is not None:
            self._inbox.register(callback)

    def _opened(self) -> None:
        with self._endpoint.lock:
            for client in list(self._endpoint.clients):
                client.deliver()

    @property
    def open(self) -> bool:
        """Whether somebody takes what arrives; until then it waits with its senders."""
        return self._inbox.open

    def take(self, client: LocalClient, groups: Sequence[TaskGroup], token: Any) -> None:
        """Pass a batch on; the endpoint's lock is held, so that batches keep their order."""
        counts = self._received.setdefault(client.source, [0, 0, 0])
        counts[0] += sum(map(len, groups))
        counts[1] += 1
        counts[2] += sum(len(group.data) for group in groups)
        for via, some in by_via(groups).items():
            self._deliver(client, some, token, _Origin(client, token, via))

    def _deliver(self, client: LocalClient, groups: Sequence[TaskGroup], token: Any, origin: _Origin) -> None:
        batch = ReceivedBatch.arrived(groups, origin, client.assignment_version)
        self._inbox.recv(batch)
        refused = {id(group): error for group, error in batch.refusals}
        for group, error in batch.refusals:
            self.refused[error.code] += len(group)
            client.refused(group, error, token)
        if not batch.held:
            for group in groups:
                if id(group) not in refused:
                    batch.origin.release(group.task, len(group), len(group.data))

    @property
    def port(self) -> int:
        """See IConnection."""
        return self._port

    @property
    def status(self) -> ConnectionStatus:
        """See IConnection."""
        return self._status

    @property
    def addresses(self) -> Sequence[str]:
        """See IServerConnection: `local:` and the port."""
        return [f"local:{self._port}"]

    def stop_intake(self, intake: Intake = Intake.NOBODY) -> None:
        """See IServerConnection. What is sent from now on waits for the next server; nobody comes again."""
        if intake is Intake.WORKERS:
            return  # workers and programs share the port's queue
        with self._endpoint.lock:
            if self._endpoint.server is self:
                self._endpoint.server = None

    def register_recv(self, callback: IConnectionCallback) -> None:
        """See IServerConnection."""
        self._inbox.register(callback)

    def recv(self, flags: int = BLOCK) -> TaskMessage | None:
        """See IServerConnection."""
        return self._inbox.pull(flags)

    def send_load_metrics(self, loads: Mapping[int, float]) -> None:
        """See IServerConnection."""
        self._check_open()
        with self._endpoint.lock:
            self._endpoint.loads = dict(loads)
            for client in self._endpoint.clients:
                client.loads.update(loads)

    def send_backpressure_status(
        self, worker_id: str, congested: Sequence[int], relieved: Sequence[int]
    ) -> None:
        """See IServerConnection."""
        del worker_id
        self._check_open()
        with self._endpoint.lock:
            for client in self._endpoint.clients:
                client.take_status(congested, relieved)

    def _check_open(self) -> None:
        if self._status is ConnectionStatus.CLOSED:
            raise ClosedError(f"the server on port {self._port} is closed")

    def statistics(self) -> ServerStatistics:
        """See IServerConnection."""
        received = [ReceiveCount(source, *counts) for source, counts in self._received.items()]
        return ServerStatistics(received, len(self._endpoint.clients), dict(self.refused))

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection. The port may be bound again; what is sent meanwhile waits."""
        del timeout
        self.abort()

    def abort(self) -> None:
        """See IConnection."""
        self._status = ConnectionStatus.CLOSED
        self.stop_intake()
        self._inbox.close()


class _Origin:
    """Settles a client's messages as the receiver releases them."""

    __slots__ = ("_client", "_token", "_via")

    def __init__(self, client: LocalClient, token: Any, via: int) -> None:
        self._client = client
        self._token = token
        self._via = via

    eager = True

    @property
    def source(self) -> str:
        return self._client.source

    @property
    def via(self) -> int:
        return via_of(self._client.source, 0) if self._client.relays else 0

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        settled = Settled(self._token, task, messages, size_bytes, None)
        self._client.settle(settled, lane_of(task, self._via))


class LocalClient(IRelayConnection):
    """The connecting side."""

    def __init__(self, endpoint: _Endpoint, port: int, source: str, settings: SessionSettings) -> None:
        self.source = source
        self.loads: dict[int, float] = {}
        self._congested: frozenset[int] = frozenset()
        self._endpoint = endpoint
        self._port = port
        self._settings = settings
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._ledger = Ledger()
        self._pending = 0
        self._pending_bytes = 0
        self._batches = 0
        self._closed = False
        self._waiting: deque[tuple[Sequence[TaskGroup], Any]] = deque()
        self._lanes: dict[int, int] = {}
        self._highest: dict[int, int] = {}
        self._given_up: list[Settled] = []
        self._callbacks: tuple[Callable[[Sequence[Settled]], None], ...] = ()
        self._version: Callable[[], int] = lambda: 0
        with endpoint.lock:
            endpoint.clients.append(self)
            self.loads.update(endpoint.loads)

    @property
    def port(self) -> int:
        """See IConnection."""
        return self._port

    @property
    def status(self) -> ConnectionStatus:
        """See IConnection."""
        if self._closed:
            return ConnectionStatus.CLOSED
        return ConnectionStatus.CONNECTING if self._endpoint.server is None else ConnectionStatus.READY

    def send(self, messages: Any, payload: bytes | None = None, /, *, timeout: float | None = None) -> None:
        """See IClientConnection."""
        groups = as_groups(messages, payload)
        with self._lock:
            if not self._moved.wait_for(lambda: self._accept(groups, None), self._settings.patience(timeout)):
                raise BufferFullError(
                    f"no room: {self._pending} messages ({self._pending_bytes} bytes) are pending, "
                    "the receiver is slow"
                )
        self.deliver()

    def try_send(self, messages: Any, payload: bytes | None = None, /) -> bool:
        """See IClientConnection."""
        return self.forward(as_groups(messages, payload), None)

    def forward(self, groups: Sequence[TaskGroup], token: Any, *, retain: bool = False) -> bool:  # noqa: ARG002
        """See IRelayConnection. A receiver in this process does not die alone: there is nothing to retain."""
        with self._lock:
            accepted = self._accept(groups, token)
        if accepted:
            self.deliver()
        return accepted

    def _accept(self, groups: Sequence[TaskGroup], token: Any) -> bool:
        """Put messages behind those that wait, if there is room or can be made; the lock is held."""
        if self._closed:
            raise ClosedError(f"the connection to port {self._port} is closed")
        settings = self._settings
        check_sizes(groups, settings.max_message_bytes)
        messages = sum(map(len, groups))
        size = sum(len(group.data) for group in groups)
        too_many = excess(self._pending, messages, settings.max_pending_messages)
        too_large = excess(self._pending_bytes, size, settings.max_pending_bytes)
        if (too_many or too_large) and not self._make_room(too_many, too_large):
            return False
        for group in groups:
            self._highest[group.lane] = max(self._highest.get(group.lane, 0), group.end - 1)
            self._count(group.lane, len(group), len(group.data))
        self._ledger.accepted += messages
        if groups:
            self._batches += 1
            self._waiting.append((groups, token))
        return True

    def _make_room(self, too_many: int, too_large: int) -> bool:
        """Give up the oldest of what waits, no more than needed; False, and nothing, if it is too little."""
        if self._settings.overflow is not Overflow.DROP_OLDEST or not self._waits(too_many, too_large):
            return False
        while too_many > 0 or too_large > 0:
            groups, token = self._waiting.popleft()
            gone, *rest = cut_off(groups[0], too_many, too_large)
            if rest := [*rest, *groups[1:]]:
                self._waiting.appendleft((rest, token))
            too_many -= len(gone)
            too_large -= len(gone.data)
            settled = Settled(token, gone.task, len(gone), len(gone.data), DropReason.OVERFLOW)
            self._account(settled, gone.lane)
            self._given_up.append(settled)
        return True

    def _waits(self, messages: int, size_bytes: int) -> bool:
        """Whether so much waits for a server."""
        for groups, _ in self._waiting:
            messages -= sum(map(len, groups))
            size_bytes -= sum(len(group.data) for group in groups)
            if messages <= 0 and size_bytes <= 0:
                return True
        return False

    def deliver(self) -> None:
        """Hand over to the server, if there is one, whatever waits; say what was given up."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        self._tell(given_up)
        with self._endpoint.lock:
            while (server := self._endpoint.server) is not None and server.open:
                with self._lock:
                    if not self._waiting:
                        return
                    groups, token = self._waiting.popleft()
                server.take(self, groups, token)

    def settle(self, settled: Settled, lane: int) -> None:
        """Take account of what is done with."""
        with self._lock:
            self._account(settled, lane)
            self._moved.notify_all()
        self._tell([settled])

    def _account(self, settled: Settled, lane: int) -> None:
        self._count(lane, -settled.messages, -settled.size_bytes)
        if settled.dropped is None:
            self._ledger.acknowledged += settled.messages
        else:
            self._ledger.dropped[settled.dropped] += settled.messages

    def _tell(self, settled: Sequence[Settled]) -> None:
        for callback in self._callbacks if settled else ():
            callback(settled)

    def refused(self, group: TaskGroup, error: TuplewireError, token: Any) -> None:
        """Take account of what the receiver refused."""
        unknown = getattr(error, "code", "") == "UNKNOWN_TASK"
        reason = DropReason.UNKNOWN_TASK if unknown else DropReason.REFUSED
        self.settle(Settled(token, group.task, len(group), len(group.data), reason), group.lane)

    @property
    def relays(self) -> bool:
        """Whether a worker sends here what others have handed to it."""
        return bool(self._callbacks)

    @property
    def assignment_version(self) -> int:
        """By which assignment the sender routes; 0: it does not."""
        return self._version()

    @property
    def congested(self) -> frozenset[int]:
        """See IClientConnection."""
        return self._congested

    def take_status(self, congested: Sequence[int], relieved: Sequence[int]) -> None:
        """Take account of the server's backpressure status."""
        self._congested = self._congested.union(congested).difference(relieved)

    def attach(
        self,
        on_settled: Callable[[Sequence[Settled]], None],
        on_released: Callable[[Sequence[Settled]], None],
        assignment_version: Callable[[], int],
        draining: Callable[[], bool],  # noqa: ARG002 - a connection of this process does not break
    ) -> None:
        """See IRelayConnection."""
        self._callbacks, self._version = (on_settled, on_released), assignment_version

    def follow(self, tasks: Collection[int]) -> None:
        """See IRelayConnection. Every release is told anyway."""

    def quiet(self, task: int) -> bool:
        """See IRelayConnection."""
        return all(task_and_via(lane)[0] != task for lane in self._lanes)

    def follows(self, task: int, workers: Collection[int], position: int) -> bool:
        """See IRelayConnection."""
        for lane in self._lanes:
            number, via = task_and_via(lane)
            if number == task and first_worker(via) in workers and self._highest[lane] < position:
                return True
        return False

    def take_back(self, timeout: float) -> list[tuple[TaskGroup, Any]]:
        """See IRelayConnection. What a server holds stays with it."""
        with self._lock:
            if not self._closed:
                self._moved.wait_for(lambda: not self._pending, timeout)
        left = [(group, token) for groups, token in self._end() for group in groups]
        with self._lock:
            for group, _ in left:
                self._count(group.lane, -len(group), -len(group.data))
                self._ledger.accepted -= len(group)
        return left

    def _count(self, lane: int, messages: int, size_bytes: int) -> None:
        self._pending += messages
        self._pending_bytes += size_bytes
        held = self._lanes[lane] = self._lanes.get(lane, 0) + messages
        if not held:
            del self._lanes[lane], self._highest[lane]

    def get_load(self, tasks: Iterable[int]) -> dict[int, float]:
        """See IClientConnection."""
        return {task: self.loads[task] for task in tasks if task in self.loads}

    def statistics(self) -> ClientStatistics:
        """See IClientConnection."""
        with self._lock:
            ledger = self._ledger.snapshot(self._pending)
            return ClientStatistics(ledger, self._ledger.accepted, self._batches)

    def close(self, timeout: float = 10.0) -> None:
        """See IConnection."""
        with self._lock:
            if not self._closed:
                self._moved.wait_for(lambda: not self._pending, timeout)
        self.abort()

    def abort(self) -> None:
        """See IConnection. What waits for a server is dropped; what a server holds stays with it."""
        for groups, token in self._end():
            for group in groups:
                settled = Settled(token, group.task, len(group), len(group.data), DropReason.CLOSED)
                self.settle(settled, group.lane)

    def _end(self) -> list[tuple[Sequence[TaskGroup], Any]]:
        """Close, and return what still waited for a server; nothing the second time."""
        with self._lock:
            if self._closed:
                return []
            self._closed = True
            self._moved.notify_all()
            waiting, self._waiting = self._waiting, deque()
        with self._endpoint.lock:
            self._endpoint.clients.remove(self)
        return list(waiting)
