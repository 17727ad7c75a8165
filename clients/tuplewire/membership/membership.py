"""The membership of a topology: a thread that polls its workers and assigns the tasks to them.

Used by Spark programs (spark/executors.py) and the command `tuplewire membership`. Owns the thread, its
control clients and the registry that decides. Thread-safe. Design: docs/design/moves.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, TypeAlias, TypedDict

from tuplewire.connection.control_client import ControlClient, ControlClients
from tuplewire.errors import ClosedError, ConfigError, TuplewireError, UnreachableError
from tuplewire.identity.credentials import Credentials
from tuplewire.membership.member_status import MembershipStatus, Phase
from tuplewire.membership.registry import Registry, WorkerReport
from tuplewire.settings.addresses import check_address_syntax, resolve_topology
from tuplewire.settings.config import check_timeout
from tuplewire.text.events import event_logger
from tuplewire.values.group import check_task, check_whole

logger = event_logger(__name__)

Workers: TypeAlias = Sequence[str] | Callable[[], Iterable[str] | Mapping[str, str]]
"""Addresses (host:port), or a function that returns addresses or a mapping from addresses to owners. After an
error of the function, the last addresses stay."""

_CALL_SECONDS = 3.0
_WARNINGS = {"worker.unresponsive", "worker.expired", "assignment.refused", "membership.superseded"}


class MembershipKeywords(TypedDict, total=False):
    """The keywords of Membership, for functions that pass them to it."""

    topology: str | None
    min_workers: int
    timeout: float
    expire_seconds: float
    poll_seconds: float
    credentials: Credentials | None


class Membership:
    """Distributes a topology's tasks over its workers while workers come and go. A context manager.

    Args:
        workers: The addresses where workers should be.
        tasks: All tasks of the topology.
        topology: Default: TUPLEWIRE_TOPOLOGY, or `default`.
        min_workers: The number of workers to wait for before tasks are assigned and the block is entered.
        timeout: The maximum wait for these workers, in seconds.
        expire_seconds: A worker that does not answer for this time loses its tasks.
        poll_seconds: The time between polls of the workers.
        credentials: Default: from the environment (TUPLEWIRE_TLS_CA and so on).

    Guarantees: once settled, the numbers of tasks on two workers differ by at most one, with as few moves
    as possible. If a worker drains or is no longer listed, its tasks move immediately. It forwards its
    messages, so none is lost, and refuses new ones only after the move, or after two polls. If a worker
    fails, its messages are lost, except those of senders with `ack_mode="processed"`, which are
    redelivered with `redelivered` set. A restarted or newer program takes over and leaves the tasks in
    place; the older one stops. The end of the block leaves the assignment unchanged.

    Raises:
        ConfigError, InvalidTaskError: An argument, or a task id, is invalid.
        UnreachableError: On entering the block: there are fewer than `min_workers` workers at the timeout.
    """

    def __init__(
        self,
        workers: Workers,
        tasks: Collection[int],
        *,
        topology: str | None = None,
        min_workers: int = 1,
        timeout: float = 60.0,
        expire_seconds: float = 10.0,
        poll_seconds: float = 1.0,
        credentials: Credentials | None = None,
    ) -> None:
        if not tasks:
            raise ConfigError("there are no tasks to assign: name them, like tasks=range(64)")
        for name, value in (("expire_seconds", expire_seconds), ("poll_seconds", poll_seconds)):
            if not (check_timeout(value, name) or 0.0) > 0:
                raise ConfigError(f"{name} must be more than 0, not {value!r}")
        if not callable(workers) and not _checked_addresses(workers):
            raise ConfigError("there are no workers: name their addresses, host:port")
        self._workers = workers
        self._min_workers = check_whole(min_workers, "min_workers", 2**31)
        self._timeout = check_timeout(timeout)
        self._poll_seconds = poll_seconds
        self._credentials = credentials
        self._registry = Registry(
            resolve_topology(topology),
            frozenset(map(check_task, tasks)),
            min_workers=min_workers,
            expire_seconds=expire_seconds,
        )
        self._name_of: Mapping[str, str] = {}
        self._problem = ""
        """The reason why the last discovery of the workers failed; empty if it succeeded."""
        self._changed = threading.Condition()
        self._status = self._registry.status()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tuplewire-membership", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            if self._min_workers:
                self.wait(self._min_workers, self._timeout)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        status = self.status()
        return f"<Membership {status.topology}: assignment {status.version}, {status.joined_count} workers>"

    def close(self) -> None:
        """Stop polling the workers; the assignment stays valid. A second call does nothing."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def status(self) -> MembershipStatus:
        """Return the workers and their tasks at the last poll; print the result for a table."""
        with self._changed:
            return self._status

    @property
    def address(self) -> str:
        """The address of a worker, which routes to all tasks. Raises UnreachableError if there is none."""
        for worker in self.status().workers:
            if worker.phase is Phase.JOINED:
                return worker.address
        raise UnreachableError(f"no worker is registered: {self.status()}")

    def wait(self, min_workers: int = 1, timeout: float | None = 60.0) -> MembershipStatus:
        """Wait up to `timeout` seconds for `min_workers` workers with settled tasks; return the status.

        Raises:
            UnreachableError: The timeout has passed; the error has the last status.
            ClosedError: The membership has stopped; the error has the reason.
        """
        with self._changed:
            ready = self._changed.wait_for(lambda: self._status.ended or self._is_ready(min_workers), timeout)
            if self._status.ended:
                raise ClosedError(f"the membership has stopped: {self._status.ended}")
            if not ready:
                hint = f"; their discovery failed: {self._problem}" if self._problem else ""
                raise UnreachableError(
                    f"no settled membership with {min_workers} workers after {timeout:g} s: start one next "
                    f"to each executor, and check that this program can reach it{hint}\n{self._status}"
                )
            return self._status

    def _is_ready(self, min_workers: int) -> bool:
        return self._status.stable and self._status.joined_count >= min_workers

    # --- the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        clients = ControlClients(partial(ControlClient, timeout=_CALL_SECONDS, credentials=self._credentials))
        reason = "it was closed"
        try:
            while not self._closing.is_set():
                self._poll_and_assign(clients)
                if self._registry.superseded_reason:
                    reason = self._registry.superseded_reason
                    return
                # Poll faster until all is settled: a task moves for balance only after its last move.
                self._closing.wait(self._poll_seconds if self._status.stable else self._poll_seconds / 5)
        except BaseException as error:
            logger.exception("membership.failed")
            reason = f"a defect: {error!r}"
        finally:
            clients.close()
            with self._changed:
                self._status = replace(self._status, ended=reason)
                self._changed.notify_all()

    def _poll_and_assign(self, clients: ControlClients) -> None:
        self._find_workers()
        registry = self._registry
        # Poll workers that are no longer listed, too: they still need each assignment to forward messages.
        addresses = dict.fromkeys([*self._name_of, *registry.addresses])
        clients.close_except(addresses)
        registry.apply_poll(time.monotonic(), self._name_of, clients.call_all(addresses, self._fetch_report))
        registry.decide()
        assignment = registry.current
        if assignment is not None:
            outcomes = clients.call_all(
                registry.outdated_workers(), lambda each: each.update_assignment(assignment)
            )
            for address, outcome in outcomes.items():
                registry.apply_outcome(address, outcome if isinstance(outcome, TuplewireError) else None)
        for event, fields in registry.events:
            logger.log(logging.WARNING if event in _WARNINGS else logging.INFO, event, extra=fields)
        registry.events.clear()
        with self._changed:
            self._status = registry.status()
            self._changed.notify_all()

    def _fetch_report(self, client: ControlClient) -> WorkerReport:
        status = client.status(max_tasks=0, membership_poll_seconds=self._poll_seconds)
        foreign = self._registry.may_be_foreign(client.address, status.assignment_version)
        return status, client.get_assignment() if foreign else None

    def _find_workers(self) -> None:
        """Request the workers' addresses; keep the previous ones if that fails."""
        try:
            self._name_of = _checked_addresses(self._workers() if callable(self._workers) else self._workers)
            self._problem = ""
        except Exception as error:  # noqa: BLE001 - the program's function may raise anything
            reason = str(error) if isinstance(error, TuplewireError | OSError) else repr(error)
            if not self._problem:
                logger.warning("membership.discovery_failed", extra={"reason": reason})
            self._problem = reason


def _checked_addresses(workers: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the workers' addresses and owners; raise ConfigError for an invalid address."""
    named = dict(workers) if isinstance(workers, Mapping) else dict.fromkeys(workers, "")
    for address in named:
        check_address_syntax(address)
    return named
