"""A program that assigns the tasks of a topology, alone or while it holds a lease."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

from tuplewire.addresses import join_host_port, split_host_port
from tuplewire.errors import UnreachableError
from tuplewire.events import event_logger
from tuplewire.identity.credentials import Credentials
from tuplewire.membership import Membership
from tuplewire_service.leading.kubernetes_leases import KubernetesLeases
from tuplewire_service.leading.lease import LOOK_SECONDS, Candidate, Lease
from tuplewire_service.process.stop import EXIT_FAILED, EXIT_OK, Stop

logger = event_logger(__name__)


def addresses_of(names: Collection[str]) -> list[str]:
    """Return host:port of each worker. A name may have many addresses, as a headless Service has.

    Of a name with addresses of both families the IPv4 ones count: a worker behind two would be two.
    Raises OSError for a name that has none.
    """
    found: dict[str, None] = {}
    for name in names:
        host, port = split_host_port(name)
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        families = {family for family, *_ in answers}
        family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        found.update(
            (join_host_port(str(address[0]), port), None) for each, *_, address in answers if each == family
        )
    return sorted(found)


def lead(
    names: Collection[str],
    tasks: Collection[int],
    topology: str,
    credentials: Credentials,
    stop: Stop,
    leases: KubernetesLeases | None = None,
    identity: str = "",
) -> int:
    """Assign tasks to the workers at these names until told to stop; return the exit code.

    leases: where one of several programs leads at a time; the others wait. identity: this one's name there.
    It ends with 1 when somebody else is in charge; started anew, it waits for its turn.
    """
    election = None if leases is None else _Election(leases, identity)
    with ExitStack() as stack:
        membership = None
        while True:
            if membership is None and (election is None or election.leads()):
                logger.info("membership.leads", extra={"identity": identity})
                membership = Membership(
                    lambda: addresses_of(names),
                    tasks,
                    topology=topology,
                    at_least=0,
                    credentials=credentials,
                )
                stack.enter_context(membership)
            elif membership is not None:
                reason = membership.status().ended
                if election is not None and not election.leads():
                    reason = reason or "the lease is lost"
                if reason:
                    logger.error("membership.over", extra={"reason": reason})
                    return EXIT_FAILED
            if (request := stop.wait(LOOK_SECONDS)) is not None:
                logger.info("membership.stopped", extra={"reason": request.reason})
                break
    if election is not None:
        election.give_back()
    return EXIT_OK


class _Election:
    def __init__(self, leases: KubernetesLeases, identity: str) -> None:
        self._leases = leases
        self._candidate = Candidate(identity)
        self._holder = ""
        self._problem = ""

    def leads(self) -> bool:
        """Look at the lease, take or renew it, and return whether this program leads."""
        try:
            self._look()
            self._problem = ""
        except UnreachableError as error:
            if not self._problem:
                logger.warning("lease.unknown", extra={"reason": str(error)})
            self._problem = str(error)
        return self._candidate.leads(time.monotonic())

    def _look(self) -> None:
        now = time.monotonic()
        kept = self._leases.get()
        wanted = self._candidate.decide(kept, now, _stamp())
        if wanted is None:
            self._candidate.lost()
            self._tell("" if kept is None else kept.holder)
        elif self._leases.put(wanted):
            self._candidate.wrote(now)
            self._tell(wanted.holder)

    def _tell(self, holder: str) -> None:
        if holder != self._holder:
            logger.info("lease.held", extra={"holder": holder})
        self._holder = holder

    def give_back(self) -> None:
        """Let the next one lead at once; where that fails, the lease runs out."""
        if not self._candidate.leads(time.monotonic()):
            return
        try:
            kept: Lease | None = self._leases.get()
            if kept is not None and kept.holder == self._holder:
                self._leases.put(replace(kept, holder="", seconds=1, renewed=_stamp()))
        except UnreachableError as error:
            logger.warning("lease.not_given_back", extra={"reason": str(error)})


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
