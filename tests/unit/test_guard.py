"""Who is admitted, and as what: the decisions, apart from gRPC."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tuplewire import TaskGroup
from tuplewire.errors import PermissionDeniedError, UnauthenticatedError
from tuplewire.identity.files import Token
from tuplewire_service.security.guard import REASONS, Access, Caller, Guard, Policy
from tuplewire_service.security.permissions import PermissionRule, Rules, TaskRanges

TOKEN = Token("etl", "0123456789" * 2)
WORKER = Caller("ipv4:10.0.0.1:1", ("a.workers.example",), tls=True)
PROGRAM = Caller("ipv4:10.0.0.2:1", ("etl.example",), tls=True)
UNIX = Caller("unix:")
SHOWN = Caller("unix:", shown=TOKEN.shown)
NOTHING = TaskRanges.parse("")


def guard(
    *,
    tls: bool = True,
    client_names: Sequence[str] = (),
    tokens: Sequence[Token] | None = None,
    rules: Sequence[PermissionRule] | None = None,
) -> Guard:
    """Return one for workers whose names are *.workers.example."""
    policy = Policy(
        topology="t",
        tls=tls,
        worker_names=lambda: ("*.workers.example",),
        client_names=client_names,
        tokens=None if tokens is None else lambda: tokens,
        rules=None if rules is None else lambda: Rules(tuple(rules)),
    )
    return Guard(policy)


def rule(
    send: str = "", *, tokens: tuple[str, ...] = (), control: frozenset[str] = frozenset()
) -> PermissionRule:
    """Return a rule, for everybody unless it names tokens."""
    return PermissionRule((), tokens, (), TaskRanges.parse(send), NOTHING, control)


def reason(guarded: Guard) -> str:
    """Return the one reason for which somebody was denied."""
    (found,) = guarded.denials
    assert found in REASONS
    return found


def as_worker(access: Access) -> None:
    """Act as another worker."""
    access.open_session("t", worker=True)


def test_without_settings_everybody_may_do_everything() -> None:
    """A worker without TLS, tokens and rules is as it was before there were any."""
    access = guard(tls=False).admit(UNIX)
    as_worker(access)
    access.control("Drain")
    access.receive("t", [1])
    assert access.refused([TaskGroup.of(1, [b"a"])]) == ()


@pytest.mark.parametrize("caller", [PROGRAM, UNIX, SHOWN, Caller("ipv4:1:1", ("workers.example",), tls=True)])
def test_with_tls_only_a_workers_certificate_makes_a_worker(caller: Caller) -> None:
    """Neither a program's certificate, nor a token, nor the Unix socket do."""
    guarded = guard(tokens=None if caller is not SHOWN else [TOKEN])
    with pytest.raises(PermissionDeniedError, match="may not act as a worker"):
        as_worker(guarded.admit(caller))
    assert reason(guarded) == "worker"
    as_worker(guarded.admit(WORKER))


def test_names_that_are_shown_without_tls_are_none() -> None:
    """Only a certificate makes a name count."""
    with pytest.raises(PermissionDeniedError):
        as_worker(guard().admit(Caller("unix:", ("a.workers.example",), tls=False)))


def test_workers_are_asked_for_no_token_and_held_to_no_rule() -> None:
    """Their certificate is enough for what they do as workers, and for that alone."""
    guarded = guard(client_names=["etl.example"], tokens=[TOKEN], rules=[rule("1")])
    access = guarded.admit(WORKER)
    as_worker(access)
    assert access.refused([TaskGroup.of(5, [b"a"])]) == ()
    program = guarded.admit(WORKER)
    program.open_session("t", worker=False)
    assert [group.task for group, _ in program.refused([TaskGroup.of(each, [b"a"]) for each in (1, 5)])] == [
        5
    ]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [(None, "no_token"), ("Bearer wrong", "wrong_token"), (TOKEN.secret, "wrong_token")],
)
def test_programs_show_a_token(shown: str | None, expected: str) -> None:
    """A certificate does not take its place."""
    for caller in (UNIX, PROGRAM):
        guarded = guard(tokens=[TOKEN])
        with pytest.raises(UnauthenticatedError):
            guarded.admit(Caller(caller.peer, caller.names, caller.tls, shown))
        assert reason(guarded) == expected
    guard(tokens=[TOKEN]).admit(SHOWN)


def test_listed_programs_only() -> None:
    """Where names of programs are listed, others with a certificate do not come in; the socket has none."""
    guarded = guard(client_names=["*.jobs.example"])
    with pytest.raises(PermissionDeniedError, match="tls_client_names"):
        guarded.admit(PROGRAM)
    assert reason(guarded) == "name"
    guarded.admit(UNIX)


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        ("GetStatus", None),
        ("Publish", None),
        ("Drain", "drain"),
        ("UpdateAssignment", "assign"),
        ("New", "assign"),
    ],
)
def test_control(method: str, needs: str | None) -> None:
    """What changes a worker takes a rule, also what nobody has thought of yet."""
    without, given = guard(rules=[rule()]), guard(rules=[rule(control=frozenset({needs or ""}))])
    given.admit(UNIX).control(method)
    if needs is None:
        without.admit(UNIX).control(method)
    else:
        with pytest.raises(PermissionDeniedError, match=f"may not call {method}"):
            without.admit(UNIX).control(method)


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        (PROGRAM, PROGRAM, True),
        (PROGRAM, Caller("ipv4:10.0.0.3:9", ("etl.example", "other.example"), tls=True), True),
        (PROGRAM, Caller("ipv4:10.0.0.2:1", ("other.example",), tls=True), False),
        (PROGRAM, UNIX, False),
        (UNIX, UNIX, True),
        (WORKER, PROGRAM, False),
        (PROGRAM, WORKER, False),
        (WORKER, Caller("ipv4:10.0.0.9:1", ("b.workers.example",), tls=True), True),
    ],
)
def test_sessions_have_owners(before: Caller, after: Caller, *, may: bool) -> None:
    """A session goes on for whoever has the same token or first name, and among workers."""
    guarded = guard()
    first, second = (guarded.admit(caller) for caller in (before, after))
    for access, caller in ((first, before), (second, after)):
        access.open_session("t", worker=caller.names[:1] != () and "workers" in caller.names[0])
    assert (first.owner == second.owner) is may
