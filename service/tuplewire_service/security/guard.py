"""Admission and permissions of callers. Independent of gRPC.

Used by process/worker_security.py. Owns the current rules and the list of open streams. Not thread-safe.
Source: Storm's `IAuthorizer`, and `SaslStormServerHandler` for the authentication of the peer.
Design: docs/design/identity.md.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tuplewire.errors import PermissionDeniedError, RefusedError, UnauthenticatedError
from tuplewire.identity.credentials import any_name_matches
from tuplewire.identity.files import Token
from tuplewire.text.events import LogRateLimiter, event_logger
from tuplewire.values.group import TaskGroup
from tuplewire_service.messaging.server_stream import AccessRights
from tuplewire_service.security.permissions import PermissionRule, Permissions, permissions_of

logger = event_logger(__name__)

DENIAL_REASONS = ("no_token", "wrong_token", "wrong_name", "not_a_worker", "topology", "task", "control")
"""The reasons for a denial; see docs/how-to/secure.md."""
_METHODS_BY_ACTION = {
    "": ("GetStatus", "GetLoad", "GetAssignment", "Poll", "Read", "Acknowledge", "Stage", "Discard", "Tap"),
    "publish": ("Begin", "Check", "Publish", "GetProgress"),
    "drain": ("Drain",),
    "debug": ("GetDebug", "SetLogging"),
}
ACTION_BY_METHOD = {method: action for action, methods in _METHODS_BY_ACTION.items() for method in methods}
"""The `control` action that each method requires; empty: none. Stage, Tap and Source check tasks."""
DEFAULT_ACTION = "assign"
"""The action that all other methods require, including future ones."""
_RULE_HINT = "in its rule of the worker's permissions file"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller, as the connection identifies it: its address, and the names in its certificate.

    `has_certificate` is True if it presented one. `authorization` is that metadata value, if any.
    """

    address: str
    names: tuple[str, ...] = ()
    has_certificate: bool = False
    authorization: str | None = field(default=None, repr=False)

    @property
    def identity(self) -> str:
        """A name for the log, without the port, which differs for each connection."""
        return self.names[0] if self.names else self.address.rpartition(":")[0]


@dataclass(eq=False, kw_only=True)
class Guard:
    """Admits callers. Not thread-safe. The callables return the current content of the files.

    `uses_tls` is True if TCP connections use TLS. `worker_names` and `client_names` are the certificate names
    that may act as a worker or a program; no client names: all. Without `tokens`, no token is required.
    Without `read_rules`, there are no rules; `rules` are those of the last refresh(). `denials` counts denied
    callers by reason. `open_streams` has functions that end the open streams, by their access.
    """

    topology: str
    uses_tls: bool = False
    worker_names: Callable[[], Sequence[str]] = tuple
    client_names: Sequence[str] = ()
    tokens: Callable[[], Sequence[Token]] | None = None
    read_rules: Callable[[], Sequence[PermissionRule]] | None = None
    rules: Sequence[PermissionRule] | None = field(default=None, init=False)
    denials: Counter[str] = field(default_factory=Counter, init=False)
    open_streams: dict[Access, Callable[[RefusedError], None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._log_rate = LogRateLimiter()
        self._checked_inputs: tuple[object, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Apply changed files, and end the streams with callers that are no longer admitted."""
        if self.read_rules is not None:
            self.rules = self.read_rules()
        tokens = self.tokens() if self.tokens else ()
        seen, self._checked_inputs = self._checked_inputs, (tokens, self.rules, tuple(self.worker_names()))
        # Streams are checked only after a change, because each admission calls this.
        if seen == self._checked_inputs:
            return
        for access, end in list(self.open_streams.items()):
            try:
                access.recheck()
            except RefusedError as error:
                self.open_streams.pop(access, None)
                end(error)

    def admit(self, caller: Caller) -> Access:
        """Return the rights of a caller.

        Raises UnauthenticatedError if a token is required and no valid one is presented, and
        PermissionDeniedError if its certificate is not on a list.
        """
        self.refresh()
        return Access(self, caller)

    def check_identity(self, caller: Caller) -> tuple[str | None, bool]:
        """Return the caller's token name, if any, and True if it may be a worker. Raises as admit() does."""
        worker = caller.has_certificate and any_name_matches(caller.names, self.worker_names())
        # Workers do not need to be in the list of clients.
        names = self.client_names if caller.has_certificate and not worker else ()
        if names and not any_name_matches(caller.names, names):
            raise self.add_denial(
                caller.identity,
                "wrong_name",
                f"a certificate with the names {', '.join(caller.names) or '(none)'} is not for this worker; "
                "tls_client_names lists the permitted names",
            )
        # A worker's certificate takes the place of a token.
        token = None if self.tokens is None or worker else self._token(caller, self.tokens())
        if not self.uses_tls:
            # Without TLS, any caller could be a worker. With rules, no caller may then be one.
            worker = self.read_rules is None
        return None if token is None else token.name, worker

    def _token(self, caller: Caller, tokens: Sequence[Token]) -> Token:
        if caller.authorization is None:
            self.add_denial(caller.identity, "no_token", "no token was presented")
            raise UnauthenticatedError(
                "this worker requires a token: name its file (--token-file, TUPLEWIRE_TOKEN_FILE, "
                "token_file), or send it as the metadata authorization: Bearer TOKEN"
            )
        token = find_token(caller.authorization, tokens)
        if token is None:
            self.add_denial(caller.identity, "wrong_token", "the token is not in this worker's token_file")
            raise UnauthenticatedError(
                "this worker does not know the presented token: compare the token files of both sides"
            )
        return token

    def add_denial(self, identity: str, reason: str, detail: str) -> PermissionDeniedError:
        """Count a denial, log it at most once a minute for each caller and reason, and return the error."""
        self.denials[reason] += 1
        if self._log_rate.count_event((identity, reason)):
            logger.warning("access.denied", extra={"identity": identity, "reason": reason, "detail": detail})
        return PermissionDeniedError(detail)


class Access(AccessRights):
    """The rights of an admitted caller, by the current rules."""

    def __init__(self, guard: Guard, caller: Caller) -> None:
        self._guard = guard
        self._caller = caller
        self._is_worker = False
        self._recheck: Callable[[Access], object] | None = None
        """Checks the right that its stream was admitted with."""
        self._identify()

    def _identify(self) -> None:
        self._token, self._may_be_worker = self._guard.check_identity(self._caller)
        self._id = f"token {self._token}" if self._token else self._caller.identity
        self._rules: Sequence[PermissionRule] | None = None
        self._granted: Permissions | None = None

    @contextmanager
    def track_stream(self, end: Callable[[RefusedError], None]) -> Iterator[None]:
        self._guard.open_streams[self] = end
        try:
            yield
        finally:
            self._guard.open_streams.pop(self, None)

    def recheck(self) -> None:
        """Check the rights of its stream again; sent frames are checked anyway. Raises RefusedError."""
        self._identify()
        if self._recheck is not None:
            self._recheck(self)

    def _check_worker(self) -> None:
        if not self._may_be_worker:
            advice = "present a certificate with one of the workers' tls_worker_names"
            raise self._may_not("not_a_worker", "act as a worker", advice)

    def check_send(self, topology: str, *, as_worker: bool) -> None:
        if as_worker:
            self._recheck = Access._check_worker
            self._check_worker()
        else:
            self._check_has_rule(topology)
        self._is_worker = as_worker

    def check_receive(self, topology: str, tasks: Iterable[int]) -> None:
        tasks = list(tasks)
        self._recheck = partial(Access.check_receive, topology=topology, tasks=tasks)
        self._check_tasks(topology, tasks, "receive from", "receive")

    def check_tap(self, topology: str, tasks: Collection[int]) -> None:
        self._recheck = partial(Access.check_tap, topology=topology, tasks=tasks)
        self._check_tasks(topology, tasks, "tap", "tap")
        granted = self._permissions()
        if granted is not None and not tasks and not granted.tap.contains_all:
            raise self._task_denial("tap every task", "tap")

    def denied_groups(self, groups: Sequence[TaskGroup]) -> Sequence[tuple[TaskGroup, RefusedError]]:
        # The frequent case without rules must be fast: this runs for each frame.
        if self._guard.rules is None or self._is_worker:
            return ()
        granted = self._permissions()
        if granted is None or granted.send.contains_all:
            return ()
        return [
            (group, self._task_denial(f"send to task {group.task}", "send"))
            for group in groups
            if group.task not in granted.send
        ]

    @property
    def owner(self) -> str:
        """All workers together, a token's name up to a `/`, or a certificate's first name; see AccessRights.

        So a driver with more rights, `etl/driver`, can publish messages that its executors, `etl`, staged.
        """
        if self._is_worker and self._may_be_worker:
            return "workers"
        if self._token is not None:
            return f"token {self._token.partition('/')[0]}"
        return next(iter(self._caller.names), "")

    def may_list(self, identity: str) -> bool:
        """Return True for its own sessions, or if it may assign or drain, or if there are no rules."""
        granted = self._permissions()
        return granted is None or identity == self.owner or bool(granted.control & {"assign", "drain"})

    def check_control(self, method: str) -> None:
        granted = self._permissions()
        action = ACTION_BY_METHOD.get(method, DEFAULT_ACTION)
        if granted is not None and action and action not in granted.control:
            raise self._may_not("control", f"call {method}", f"add {action!r} to `control` {_RULE_HINT}")

    def _permissions(self) -> Permissions | None:
        rules = self._guard.rules
        if rules is None:
            return None
        # The sum of the rules is computed once for each version of the file.
        if self._granted is None or rules is not self._rules:
            self._rules = rules
            self._granted = permissions_of(rules, self._caller.names, self._token, self._guard.topology)
        return self._granted

    def _check_has_rule(self, topology: str) -> None:
        granted = self._permissions()
        if granted is not None and not granted.has_rule:
            advice = "add a rule for it to the worker's permissions file"
            raise self._may_not("topology", f"use topology {topology!r}", advice)

    def _check_tasks(self, topology: str, tasks: Iterable[int], action: str, key: str) -> None:
        self._check_has_rule(topology)
        granted = self._permissions()
        for task in tasks if granted is not None else ():
            if task not in getattr(granted, key):
                raise self._task_denial(f"{action} task {task}", key)

    def _task_denial(self, action: str, key: str) -> PermissionDeniedError:
        return self._may_not("task", action, f"permit it under `{key}` {_RULE_HINT}")

    def _may_not(self, reason: str, action: str, advice: str) -> PermissionDeniedError:
        return self._guard.add_denial(self._id, reason, f"{self._id} may not {action}: {advice}")


def find_token(authorization: str, tokens: Iterable[Token]) -> Token | None:
    """Return the token that matches the metadata value (`Bearer ...`), or None."""
    found = None
    value = authorization.encode()
    for token in tokens:  # all: the time is the same for a nearly correct token as for any other
        if hmac.compare_digest(value, token.bearer_value.encode()):
            found = token
    return found
