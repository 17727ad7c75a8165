"""The membership of a topology: a thread that looks at its workers, and gives them their tasks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Self, TypeAlias, TypedDict

from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.control_clients import ControlClients
from tuplewire.errors import ClosedError, ConfigError, TuplewireError, UnreachableError
from tuplewire.identity.credentials import Credentials
from tuplewire.membership.member_status import MembershipStatus, Phase
from tuplewire.membership.registry import Registry, Report
from tuplewire.settings.addresses import check_reachable, resolve_topology
from tuplewire.text.events import event_logger
from tuplewire.values.group import check_task

logger = event_logger(__name__)

Workers: TypeAlias = Sequence[str] | Callable[[], Iterable[str] | Mapping[str, str]]
"""Addresses, host:port; or what returns them, or addresses to whose worker each is, whenever it is called."""

_CALL_SECONDS = 3.0
_WARNINGS = {"worker.silent", "worker.expired", "assignment.refused", "membership.superseded"}


class MembershipKeywords(TypedDict, total=False):
    """The keywords of Membership, for functions that hand them on."""

    topology: str | None
    at_least: int
    timeout: float
    expire_seconds: float
    poll_seconds: float
    credentials: Credentials | None


class Membership:
    """Keeps a topology's tasks spread over its workers as these come and go; use it as a context manager.

    workers: where they should be. tasks: all that there are. topology: default TUPLEWIRE_TOPOLOGY, or
    `default`. at_least: nothing is assigned, and the block not entered, before so many workers are there.
    timeout: how long the block waits for that, in seconds. expire_seconds: a worker that does not answer for
    so long loses its tasks. poll_seconds: how often the workers are looked at. credentials: for them; None
    takes those of TUPLEWIRE_TLS_CA and so on.

    Guarantees: no worker has more than one task more than another once all is settled, and no more tasks move
    than that takes. Tasks of a worker that drains, or that is not named any more, go to others at once, and
    it hands over what it holds: nothing is lost. What a worker holds that dies is lost with it, but for
    messages of senders with `ack_mode="processed"`, which come again, marked redelivered. A program that is
    started anew takes over, and leaves the tasks where they are; of two at a time the newer is in charge, and
    the other ends. The end of the block leaves the assignment as it is.

    Raises ConfigError for wrong arguments, UnreachableError when the workers are not there in time.
    """

    def __init__(
        self,
        workers: Workers,
        tasks: Collection[int],
        *,
        topology: str | None = None,
        at_least: int = 1,
        timeout: float = 60.0,
        expire_seconds: float = 10.0,
        poll_seconds: float = 1.0,
        credentials: Credentials | None = None,
    ) -> None:
        if not tasks:
            raise ConfigError("there are no tasks to assign: name them, like tasks=range(64)")
        for name, value in (("expire_seconds", expire_seconds), ("poll_seconds", poll_seconds)):
            if not value > 0:
                raise ConfigError(f"{name} must be more than 0, not {value!r}")
        if not callable(workers) and not _named(workers):
            raise ConfigError("there are no workers: name their addresses, host:port")
        self._workers = workers
        self._at_least = at_least
        self._timeout = timeout
        self._poll_seconds = poll_seconds
        self._credentials = credentials
        self._registry = Registry(
            resolve_topology(topology),
            frozenset(map(check_task, tasks)),
            at_least=at_least,
            expire_seconds=expire_seconds,
        )
        self._wanted: Mapping[str, str] = {}
        self._problem = ""
        """Why it is not known where the workers are."""
        self._moved = threading.Condition()
        self._status = self._registry.status()
        self._closing = threading.Event()
        self._ended = ""
        self._thread = threading.Thread(target=self._main, name="tuplewire-membership", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            if self._at_least:
                self.wait(self._at_least, self._timeout)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        status = self.status()
        return f"<Membership {status.topology}: assignment {status.version}, {status.joined} workers>"

    def close(self) -> None:
        """Look at the workers no longer; the assignment stays in force. Does nothing the second time."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def status(self) -> MembershipStatus:
        """Return the workers and their tasks, as of the last look; print it for a table."""
        with self._moved:
            return self._status

    @property
    def address(self) -> str:
        """The address of a worker that is registered; any knows where all tasks are.

        Raises UnreachableError where there is none.
        """
        for worker in self.status().workers:
            if worker.phase is Phase.JOINED:
                return worker.address
        raise UnreachableError(f"no worker is registered: {self.status()}")

    def wait(self, at_least: int = 1, timeout: float = 60.0) -> MembershipStatus:
        """Wait until so many workers hold the tasks, evenly, and nothing moves; return the status then.

        Raises UnreachableError when that takes longer than `timeout` seconds, and ClosedError when the
        membership has ended; both say what was seen.
        """
        with self._moved:
            self._moved.wait_for(lambda: self._ended or self._is_there(at_least), timeout)
            if self._ended:
                raise ClosedError(f"the membership has ended: {self._ended}")
            if not self._is_there(at_least):
                hint = f"; where they are is not known: {self._problem}" if self._problem else ""
                raise UnreachableError(
                    f"not {at_least} settled workers within {timeout:g} s: start one beside each executor, "
                    f"and see that this program reaches them{hint}\n{self._status}"
                )
            return self._status

    def _is_there(self, at_least: int) -> bool:
        return self._status.settled and self._status.joined >= at_least

    # --- the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        clients = ControlClients(partial(ControlClient, timeout=_CALL_SECONDS, credentials=self._credentials))
        reason = "it was closed"
        try:
            while not self._closing.is_set():
                self._round(clients)
                if self._registry.superseded:
                    reason = self._registry.superseded
                    return
                # Less while something moves.
                self._closing.wait(self._poll_seconds if self._status.settled else self._poll_seconds / 5)
        except BaseException as error:
            logger.exception("membership.defect")
            reason = f"a defect: {error!r}"
        finally:
            clients.close()
            with self._moved:
                self._ended = reason
                self._moved.notify_all()

    def _round(self, clients: ControlClients[ControlClient]) -> None:
        self._look_for_workers()
        registry = self._registry
        addresses = dict.fromkeys([*self._wanted, *registry.addresses])
        clients.keep(addresses)
        registry.look(time.monotonic(), self._wanted, clients.each(addresses, self._report))
        registry.decide()
        assignment = registry.in_force
        if assignment is not None:
            outcomes = clients.each(registry.to_tell(), lambda each: each.update_assignment(assignment))
            for address, outcome in outcomes.items():
                registry.told(address, outcome if isinstance(outcome, TuplewireError) else None)
        for event, about in registry.events:
            logger.log(logging.WARNING if event in _WARNINGS else logging.INFO, event, extra=about)
        registry.events.clear()
        with self._moved:
            self._status = registry.status()
            self._moved.notify_all()

    def _report(self, client: ControlClient) -> Report:
        status = client.status()
        newer = status.assignment_version > self._registry.version
        return Report(status, client.assignment() if newer else None)

    def _look_for_workers(self) -> None:
        """Ask where workers should be; where that is not to be had, they stay where they were."""
        try:
            self._wanted = _named(self._workers() if callable(self._workers) else self._workers)
        except (TuplewireError, OSError) as error:
            if not self._problem:
                logger.warning("membership.blind", extra={"reason": str(error)})
            self._problem = str(error)
        else:
            self._problem = ""


def _named(workers: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """Return where workers should be, and whose they are; ConfigError for what is no address."""
    named = dict(workers) if isinstance(workers, Mapping) else dict.fromkeys(workers, "")
    for address in named:
        check_reachable(address)
    return named
