"""A plain model of workers and their answers to a membership, for tests of the registry alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuplewire.errors import StaleAssignmentError, TuplewireError, UnreachableError
from tuplewire.membership.registry import Registry, WorkerReport
from tuplewire.wire import control_pb2

TOPOLOGY = "test"


@dataclass
class ModelWorker:
    """A model of one worker."""

    worker_id: str
    incarnation: int = 1
    topology: str = TOPOLOGY
    alive: bool = True
    draining: bool = False
    moving: int = 0
    assignment: control_pb2.Assignment | None = None
    peer_addresses: tuple[str, ...] = ()

    def report(self, address: str, registry: Registry) -> WorkerReport | TuplewireError:
        """Answer a poll of a registry, which knows this worker by its address."""
        if not self.alive:
            return UnreachableError("nobody answers")
        known = self.assignment.version if self.assignment is not None else 0
        state = control_pb2.WORKER_STATE_DRAINING if self.draining else control_pb2.WORKER_STATE_READY
        status = control_pb2.GetStatusResponse(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            topology=self.topology,
            version="1.0",
            state=state,
            assignment_version=known,
            moving_task_count=self.moving,
            peer_addresses=self.peer_addresses,
        )
        return status, self.assignment if registry.may_be_foreign(address, known) else None

    def take(self, assignment: control_pb2.Assignment) -> TuplewireError | None:
        """Accept or refuse an assignment, as a worker does."""
        if not self.alive:
            return UnreachableError("nobody answers")
        known = self.assignment
        if known is not None and known != assignment and assignment.version <= known.version:
            return StaleAssignmentError(f"{assignment.version} is not newer than {known.version}")
        self.assignment = assignment
        return None

    def restart(self) -> None:
        """Start the next incarnation."""
        self.incarnation += 1
        self.alive, self.draining, self.moving, self.assignment = True, False, 0, None


@dataclass
class World:
    """Workers at their addresses, the wanted addresses, and a clock that a test moves."""

    workers: dict[str, ModelWorker] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    now: float = 0.0

    def add(self, number: int) -> ModelWorker:
        """Add a worker with an executor."""
        address = f"10.0.0.{number}:6700"
        self.wanted[address] = f"executor {number}"
        self.workers[address] = worker = ModelWorker(f"w{number}")
        return worker

    def round(self, registry: Registry, lost: frozenset[str] = frozenset()) -> control_pb2.Assignment | None:
        """Run one round of the membership's thread. Assignments for the addresses in `lost` do not arrive."""
        answers = {
            address: self.workers[address].report(address, registry)
            if address in self.workers
            else UnreachableError("no route")
            for address in dict.fromkeys([*self.wanted, *registry.addresses])
        }
        registry.apply_poll(self.now, self.wanted, answers)
        issued = registry.decide()
        current = registry.current
        for address in registry.outdated_workers():
            assert current is not None
            gone = address in lost or address not in self.workers
            outcome = UnreachableError("lost") if gone else self.workers[address].take(current)
            registry.apply_outcome(address, outcome)
        self.now += 1.0
        return issued

    def settle(self, registry: Registry) -> None:
        """Run rounds until the membership is settled."""
        for _ in range(50):
            self.round(registry)
            if registry.status().stable:
                return
        raise AssertionError(f"not settled: {registry.status()}")
