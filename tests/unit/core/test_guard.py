"""Admission of callers, their permissions and their tokens, without gRPC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.secured import secret_file

from tuplewire import TaskGroup
from tuplewire.errors import ConfigError, PermissionDeniedError, RefusedError, UnauthenticatedError
from tuplewire.identity.files import Token, read_tokens
from tuplewire.values.task_ids import TaskRanges
from tuplewire_service.security.guard import DENIAL_REASONS, Access, Caller, Guard, find_token
from tuplewire_service.security.permissions import PermissionRule

TOKEN = Token("etl", "0123456789" * 2)
WORKER = Caller("ipv4:10.0.0.1:1", ("a.workers.example",), has_certificate=True)
PROGRAM = Caller("ipv4:10.0.0.2:1", ("etl.example",), has_certificate=True)
UNIX = Caller("unix:")
SHOWN = Caller("unix:", authorization=TOKEN.bearer_value)


def guard(
    *,
    tls: bool = True,
    client_names: Sequence[str] = (),
    tokens: Sequence[Token] | None = None,
    rules: Sequence[PermissionRule] | None = None,
) -> Guard:
    """Return a guard for workers with names that match *.workers.example."""
    return Guard(
        topology="t",
        uses_tls=tls,
        worker_names=lambda: ("*.workers.example",),
        client_names=client_names,
        tokens=None if tokens is None else lambda: tuple(tokens),
        read_rules=None if rules is None else lambda: tuple(rules),
    )


def rule(
    send: str = "", receive: str = "", tap: str = "", *, tokens: Sequence[str] = (), control: str = ""
) -> PermissionRule:
    """Return a rule for all clients, or for the named tokens. control: one action, if any."""
    sent, received, tapped = map(TaskRanges.parse, (send, receive, tap))
    actions = frozenset([control] if control else [])
    return PermissionRule(tokens=tuple(tokens), send=sent, receive=received, control=actions, tap=tapped)


def reason(guarded: Guard) -> str:
    """Return the reason of all denials; there must be only one."""
    (found,) = guarded.denials
    assert found in DENIAL_REASONS
    return found


def as_worker(access: Access) -> None:
    """Open a session as another worker."""
    access.check_send("t", as_worker=True)


def test_without_settings_everybody_may_do_everything() -> None:
    """A worker without TLS, tokens and rules permits every action."""
    access = guard(tls=False).admit(UNIX)
    as_worker(access)
    access.check_control("Drain")
    access.check_receive("t", [1])
    assert access.denied_groups([TaskGroup.of(1, [b"a"])]) == ()


@pytest.mark.parametrize(
    "caller",
    [
        *(PROGRAM, UNIX, SHOWN, Caller("ipv4:1:1", ("workers.example",), has_certificate=True)),
        Caller(
            "unix:", ("a.workers.example",), has_certificate=False
        ),  # a name counts only in a TLS certificate
    ],
)
def test_with_tls_only_a_workers_certificate_makes_a_worker(caller: Caller) -> None:
    """A program's certificate, a token or a Unix socket does not permit a caller to act as a worker."""
    guarded = guard(tokens=None if caller is not SHOWN else [TOKEN])
    with pytest.raises(PermissionDeniedError, match="may not act as a worker"):
        as_worker(guarded.admit(caller))
    assert reason(guarded) == "not_a_worker"
    as_worker(guarded.admit(WORKER))


def test_workers_are_asked_for_no_token_and_held_to_no_rule() -> None:
    """A worker needs no token or rule for worker sessions; rules apply to its program sessions."""
    guarded = guard(client_names=["etl.example"], tokens=[TOKEN], rules=[rule("1")])
    access = guarded.admit(WORKER)
    as_worker(access)
    assert access.denied_groups([TaskGroup.of(5, [b"a"])]) == ()
    program = guarded.admit(WORKER)
    program.check_send("t", as_worker=False)
    assert [
        group.task for group, _ in program.denied_groups([TaskGroup.of(each, [b"a"]) for each in (1, 5)])
    ] == [5]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [(None, "no_token"), ("Bearer wrong", "wrong_token"), (TOKEN.secret, "wrong_token")],
)
def test_programs_show_a_token(shown: str | None, expected: str) -> None:
    """A certificate does not replace a token."""
    for caller in (UNIX, PROGRAM):
        guarded = guard(tokens=[TOKEN])
        with pytest.raises(UnauthenticatedError):
            guarded.admit(Caller(caller.address, caller.names, caller.has_certificate, shown))
        assert reason(guarded) == expected
    guard(tokens=[TOKEN]).admit(SHOWN)


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        ("GetStatus", None),
        ("Stage", None),
        ("Publish", "publish"),
        ("Begin", "publish"),
        ("Check", "publish"),
        ("GetProgress", "publish"),
        ("Drain", "drain"),
        ("UpdateAssignment", "assign"),
        ("New", "assign"),
    ],
)
def test_control(method: str, needs: str | None) -> None:
    """Calls that change a worker require a rule, including calls that are added later."""
    without, given = guard(rules=[rule()]), guard(rules=[rule(control=needs or "")])
    given.admit(UNIX).check_control(method)
    if needs is None:
        without.admit(UNIX).check_control(method)
    else:
        with pytest.raises(PermissionDeniedError, match=f"may not call {method}"):
            without.admit(UNIX).check_control(method)


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        (PROGRAM, PROGRAM, True),
        (PROGRAM, Caller("ipv4:10.0.0.3:9", ("etl.example", "other.example"), has_certificate=True), True),
        (PROGRAM, Caller("ipv4:10.0.0.2:1", ("other.example",), has_certificate=True), False),
        (PROGRAM, UNIX, False),
        (UNIX, UNIX, True),
        (WORKER, PROGRAM, False),
        (PROGRAM, WORKER, False),
        (WORKER, Caller("ipv4:10.0.0.9:1", ("b.workers.example",), has_certificate=True), True),
    ],
)
def test_sessions_have_owners(before: Caller, after: Caller, *, may: bool) -> None:
    """A session can be resumed with the same token or first name, or by any worker."""
    guarded = guard()
    first, second = (guarded.admit(caller) for caller in (before, after))
    for access, caller in ((first, before), (second, after)):
        access.check_send("t", as_worker=caller.names[:1] != () and "workers" in caller.names[0])
    assert (first.owner == second.owner) is may


def test_a_token_shares_what_the_one_before_its_slash_owns() -> None:
    """A driver's token shares the ownership of its executors' token, but not its permissions."""
    tokens = [Token(name, f"{name}-0123456789") for name in ("etl", "etl/driver", "etl2", "etl2/driver")]
    guarded = guard(tls=False, tokens=tokens, rules=[rule(tokens=["etl/driver"], control="drain")])
    accesses = [guarded.admit(Caller("unix:", authorization=token.bearer_value)) for token in tokens]
    assert [access.owner for access in accesses] == ["token etl", "token etl", "token etl2", "token etl2"]
    accesses[1].check_control("Drain")
    for access in (accesses[0], accesses[2], accesses[3]):
        with pytest.raises(PermissionDeniedError):
            access.check_control("Drain")


def test_stream_ends_once_its_token_is_gone() -> None:
    """If the file changes, streams with a removed token end, and streams with a valid token continue."""
    other = Token("other", "abcdefghij" * 2)
    tokens = [TOKEN, other]
    guarded = guard(tls=False, tokens=tokens)
    ended: list[RefusedError] = []
    with (
        guarded.admit(SHOWN).track_stream(ended.append),
        guarded.admit(Caller("unix:", authorization=other.bearer_value)).track_stream(
            lambda _: pytest.fail("its token is there")
        ),
    ):
        guarded.refresh()
        assert not ended
        tokens.remove(TOKEN)
        guarded.refresh()
        guarded.refresh()
        assert [type(each) for each in ended] == [UnauthenticatedError]
        assert reason(guarded) == "wrong_token"
    assert not guarded.open_streams


@pytest.mark.parametrize("reads", [Access.check_receive, Access.check_tap])
def test_reading_ends_once_no_rule_allows_it(reads: Callable[[Access, str, list[int]], None]) -> None:
    """A consumer's stream and a tap end; a sender's stays open, because each of its frames is checked."""
    rules = [rule("1", "1-5", "1-5")]
    guarded = guard(tls=False, tokens=[TOKEN], rules=rules)
    sender, reader = guarded.admit(SHOWN), guarded.admit(SHOWN)
    sender.check_send("t", as_worker=False)
    reads(reader, "t", [1, 2])
    ended: list[RefusedError] = []
    with sender.track_stream(lambda _: pytest.fail("a sender")), reader.track_stream(ended.append):
        guarded.refresh()
        assert not ended
        rules[:] = [rule(receive="1", tap="1")]
        guarded.refresh()
    assert [type(each) for each in ended] == [PermissionDeniedError]
    assert [group.task for group, _ in sender.denied_groups([TaskGroup.of(1, [b"a"])])] == [1]


def test_worker_ends_once_its_name_is_no_workers() -> None:
    """If the worker names change, for example with a new certificate, the stream of an old name ends."""
    names = ["*.workers.example"]
    guarded = Guard(topology="t", uses_tls=True, worker_names=lambda: tuple(names))
    worker = guarded.admit(WORKER)
    as_worker(worker)
    worker.recheck()
    ended: list[RefusedError] = []
    with worker.track_stream(ended.append):
        names[:] = ["others.example"]
        guarded.refresh()
    assert [type(each) for each in ended] == [PermissionDeniedError]


def test_a_tap_shows_what_a_client_may_receive() -> None:
    """A tap requires permission for each of its tasks; a tap of all tasks requires `*`."""

    def tapping(tasks: str) -> Access:
        return guard(tls=False, rules=[rule(tap=tasks)]).admit(UNIX)

    tapping("1-9").check_tap("t", [1, 9])
    tapping("*").check_tap("t", [])
    for tasks, wanted in (("1-9", []), ("1-9", [1, 10]), ("", [1])):
        with pytest.raises(PermissionDeniedError, match="tap"):
            tapping(tasks).check_tap("t", wanted)


def test_who_sees_whom() -> None:
    """A client sees its own sessions; with assign or drain permission, or without rules, it sees all."""
    access = guard(tls=False, tokens=[TOKEN], rules=[rule()]).admit(SHOWN)
    assert access.may_list(access.owner)
    assert not access.may_list("somebody else")
    for method in ("assign", "drain"):
        assert guard(tls=False, rules=[rule(control=method)]).admit(UNIX).may_list("anybody")
    assert guard(tls=False).admit(UNIX).may_list("anybody")


def test_a_worker_owns_as_a_program_what_it_stages_as_one() -> None:
    """Only a worker session makes the workers its owner; a worker's certificate alone does not."""
    access = guard().admit(WORKER)
    assert access.owner == "a.workers.example"
    as_worker(access)
    assert access.owner == "workers"


SECRET = "0123456789" + "abcdef"


def test_file_is_read(tmp_path: Path) -> None:
    """A line has a token, or a name and a token; comments and empty lines are ignored."""
    file = secret_file(tmp_path / "token", f"\ufeff# für uns\n\netl {SECRET}\n{SECRET}2\n")
    assert read_tokens(file) == (Token("etl", SECRET), Token("", f"{SECRET}2"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no token"),
        ("# none\n", "has no token"),
        ("etl geheimnis", "line 1 .* 16 to 4096"),
        (f"{SECRET}\na {SECRET} geheimnis", "line 2 .* is not TOKEN"),
        ("geheimnis-mit-ä-und-mehr", "line 1 .* printable ASCII"),
        ("geheimnis" * 500, "line 1 .* 16 to 4096 printable"),
    ],
)
def test_wrong_file_is_named_and_not_quoted(tmp_path: Path, content: str, complaint: str) -> None:
    """The error contains the file and the line, and nothing of the contents."""
    with pytest.raises(ConfigError, match=complaint) as told:
        read_tokens(secret_file(tmp_path / "token", content))
    assert str(tmp_path / "token") in str(told.value)
    assert "geheimnis" not in f"{told.value!r} {told.value.__cause__!r}"


def test_tokens_are_found() -> None:
    """Only a complete bearer token matches."""
    tokens = [Token("a", SECRET), Token("b", f"{SECRET}2")]
    assert find_token(f"Bearer {SECRET}2", tokens) is tokens[1]
    for wrong in (SECRET, f"Bearer {SECRET[:-1]}", f"bearer {SECRET}", "Bearer ", "", "Bearer ümlaut"):
        assert find_token(wrong, tokens) is None


def test_tokens_are_not_printed() -> None:
    """The representation of a token shows only its name."""
    assert SECRET not in repr(Token("a", SECRET))
