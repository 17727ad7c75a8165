"""The pure parts of Team: forming, matching of calls, values, and the bits of sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest
from helpers.tools import output_of

from tuplewire.errors import MalformedError, TeamError, TeamMismatchError, UnsupportedValueError
from tuplewire.team import team as module
from tuplewire.team.protocol import WINDOW, CallMatcher, Kind, Message, TeamFormation, unpack
from tuplewire.team.team import MAX_DIRECT_BYTES, pack_each, reduction_steps, unpack_value

REDUCERS = (np.add, np.minimum, np.maximum)
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_FLAT = 256


def all_ranks(arrays: list[Any], reducer: Any) -> list[Any]:
    """Run a reduction on all ranks, and return the result of each."""
    size = len(arrays)
    calls = [reduction_steps(each, size, reducer) for each in arrays]
    steps: list[Any] = [next(each) for each in calls]
    while True:
        got = [{source: steps[source][rank] for source in range(size)} for rank in range(size)]
        results: list[Any] = []
        for rank, call in enumerate(calls):
            try:
                steps[rank] = call.send(got[rank])
            except StopIteration as end:
                results.append(end.value)
        if results:
            return results


def arrays_of(dtype: str, length: int, size: int) -> list[Any]:
    """Return an array for each rank, with NaN, infinities and both zeros if the dtype has them."""
    chance = np.random.default_rng([length, size])
    raw = chance.integers(-1000, 1000, (size, length, 2)) / 7
    if dtype.startswith("complex"):
        found = (raw[..., 0] + 1j * raw[..., 1]).astype(dtype)
    else:
        found = raw[..., 0].astype("int64").astype(dtype) if dtype[0] in "biu" else raw[..., 0].astype(dtype)
    if dtype[0] in "fc" and length:
        special = np.array([np.nan, -0.0, 0.0, np.inf, -np.nan, 65504.0, 6e-8], dtype)
        where = chance.random((size, length)) < 0.3
        found[where] = chance.choice(special, where.sum())
    return list(found)


def without_nan_signs(array: Any) -> bytes:
    """Return the bits, with one kind of NaN: which of two NaNs numpy returns depends on the position."""
    parts = array.view(array.real.dtype) if array.dtype.kind == "c" else array
    return np.where(np.isnan(parts), np.nan, parts).tobytes() if array.dtype.kind in "fc" else array.tobytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reducer", REDUCERS, ids=lambda each: each.__name__)
def test_all_algorithms_give_the_same_bits(dtype: str, reducer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are ((x0 + x1) + x2) + ..., in both algorithms, on all ranks, at any size and length."""
    items = _FLAT // np.dtype(dtype).itemsize
    for size in range(1, 9):
        for length in (0, 1, size - 1, size + 1, items - 1, items, items + 1, 3 * items + 5):
            arrays = arrays_of(dtype, length, size)
            before = [each.copy() for each in arrays]
            expected = without_nan_signs(reduce(reducer, arrays))
            for limit in (0, _FLAT, 2**40):
                monkeypatch.setattr(module, "MAX_DIRECT_BYTES", limit)
                results = all_ranks(arrays, reducer)
                assert len(results) == size
                assert len({each.tobytes() for each in results}) == 1
                assert without_nan_signs(results[0]) == expected, (limit, size, length)
                assert all(each.dtype == dtype and each.flags.writeable for each in results)
                assert not any(np.shares_memory(each, mine) for each in results for mine in arrays if length)
            assert [each.tobytes() for each in arrays] == [each.tobytes() for each in before]


@pytest.mark.parametrize(
    ("size", "size_bytes", "parts"),
    [
        (2, MAX_DIRECT_BYTES, 1),
        (2, MAX_DIRECT_BYTES + 1, 2),
        (17, MAX_DIRECT_BYTES // 16, 1),
        (17, MAX_DIRECT_BYTES // 16 + 1, 17),
    ],
)
def test_the_algorithm_depends_on_size_and_bytes(size: int, size_bytes: int, parts: int) -> None:
    """Small arrays are sent as a whole in one step, and large arrays in parts."""
    sent = next(reduction_steps(np.zeros(size_bytes, "uint8"), size, np.add))
    assert len(sent[0]) == -(-size_bytes // parts)
    assert len(sent) == size


def arrived(value: object) -> Any:
    """Return a value as its receiver gets it."""
    return unpack_value(pack_each({0: value})[0])


@pytest.mark.parametrize(
    "value",
    [None, b"", b"x" * 100, "text", 7, 2**80, 1.5, True, [1, [2.5, None]], {"a": (1, b"2")}, np.float32(1.5)],
    ids=repr,
)
def test_a_value_arrives_with_its_type(value: object) -> None:
    """Values are equal after the journey, and have the same type."""
    got = arrived(value)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(6, dtype=">i4"),
        np.zeros((0, 3), "float32"),
        np.array(2.5),
        np.array([True, False]),
        np.arange(20, dtype="complex64")[::3],
    ],
    ids=["transposed", "big-endian", "empty", "no axes", "bools", "strided"],
)
def test_an_array_arrives_in_its_own_memory(array: Any) -> None:
    """Arrays keep their dtype, items and shape; the receiver may write to them."""
    got = arrived(array)
    assert got.dtype == array.dtype
    assert np.array_equal(got, array)
    assert got.shape == array.shape
    assert got.flags.writeable
    assert not np.shares_memory(got, array)


def test_a_value_for_all_is_packed_once() -> None:
    """The bytes of a value that goes to several ranks are shared."""
    value = np.ones(10)
    first, second, third = pack_each({0: value, 1: value.copy(), 2: value}).values()
    assert first is third
    assert first == second
    assert first is not second


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), [lambda: 0]])
def test_other_types_are_refused(value: object) -> None:
    """Objects are refused: no value is pickled."""
    with pytest.raises(UnsupportedValueError, match="cannot be sent"):
        pack_each({0: value})


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x90", b"\x91\xc1"])
def test_malformed_values_are_an_error(data: bytes) -> None:
    """Bytes of another program never become a value."""
    with pytest.raises(MalformedError):
        unpack_value(data)


def test_messages_are_their_bytes() -> None:
    """A message has 41 bytes, its call and its body."""
    value = Message(2**64 - 1, 7, 3, Kind.CALL, 2**40, 600_000, 2**41, "x" * 300, b"x" * 1000)
    packed = value.pack()
    assert len(packed) == 41 + 300 + 1000
    assert unpack(packed) == value


@pytest.mark.parametrize(
    "payload",
    [b"", b"x" * 40, b"\xff" * 50, Message(1, 1, 1, Kind.CALL, call="\xff").pack()[:42]],
    ids=["empty", "short", "no kind", "no text"],
)
def test_other_payloads_are_not_messages(payload: bytes) -> None:
    """Payloads of other programs are no messages of a team."""
    assert unpack(payload) is None


def value(call: str, number: int, position: int = 0, kind: Kind = Kind.CALL) -> Message:
    """Return an empty value of rank 1."""
    return Message(1, number, 1, kind, position, call=call)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("barrier #5", "gather #5 (root 0)"),
        ("all_reduce #5 (sum, float64, 6x6)", "all_reduce #5 (sum, float64, 6x7)"),
        ("all_reduce #5 (sum, float64, a number)", "all_reduce #5 (sum, float32, a number)"),
        ("all_reduce #5 (sum, float64, 3)", "all_reduce #5 (max, float64, 3)"),
        ("broadcast #5 (root 0)", "broadcast #5 (root 1)"),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_another_call_is_an_error(mine: str, theirs: str, *, early: bool) -> None:
    """Another call, operation, dtype, shape or root is an error that names both, in either order."""
    matching = CallMatcher()
    steps: list[Callable[[], None]] = [
        partial(matching.begin, 5, mine),
        partial(matching.add, value(theirs, 5)),
    ]

    def follow() -> None:
        for step in reversed(steps) if early else steps:
            step()
        matching.take(1, Kind.CALL)

    with pytest.raises(TeamMismatchError) as told:
        follow()
    assert str(told.value) == f"{mine}: rank 1 has called {theirs}"


def test_a_message_of_an_earlier_call_is_an_error() -> None:
    """A rank that still sends in a call that needed nothing from it has made another call."""
    matching = CallMatcher()
    matching.begin(1, "scatter #1 (root 0)")
    matching.begin(2, "barrier #2")
    with pytest.raises(TeamMismatchError, match="barrier #2: rank 1 has called gather #1"):
        matching.add(value("gather #1 (root 0)", 1))


def test_a_rank_that_has_skipped_a_call_is_an_error() -> None:
    """A rank that is ahead has sent nothing in the own call: it has made another one."""
    matching = CallMatcher()
    matching.begin(1, "gather #1 (root 0)")
    matching.add(value("barrier #2", 2))
    with pytest.raises(TeamMismatchError, match=r"gather #1 .*: rank 1 has called barrier #2"):
        matching.take(1, Kind.CALL)


def test_memory_is_bounded() -> None:
    """A rank that ignores the window is an error, not a full memory."""
    matching = CallMatcher()
    for number in range(WINDOW):
        matching.add(value(f"send #{number}", number, number, Kind.SEND))
    with pytest.raises(TeamError, match="more than 16 pieces"):
        matching.add(value("send #16", WINDOW, WINDOW, Kind.SEND))


def test_every_message_confirms_pieces() -> None:
    """A piece has the number of taken pieces; so does a message without a piece, which is not stored."""
    matching = CallMatcher()
    stream = matching.streams[1, Kind.SEND]
    matching.add(Message(1, 1, 1, Kind.SEND, taken=3))
    matching.add(Message(1, 0, 1, Kind.SEND, -1, taken=7))
    matching.add(Message(1, 2, 1, Kind.SEND, 1, taken=5))
    assert stream.confirmed == 7
    assert list(stream.arrived) == [0, 1]


@pytest.mark.parametrize("text", ["ValueError: rank 7 is bad", "TeamChangedError: x has taken rank 2 over"])
def test_the_order_of_aborts_has_no_effect(text: str) -> None:
    """A rank that leaves because of another one's ABORT repeats it, and either one may arrive first."""
    first = Message(1, 0, 1, Kind.ABORT, body=text.encode()).abort_error()
    body = f"{type(first).__name__}: {first}".encode()
    repeated = Message(1, 0, 2, Kind.ABORT, body=body).abort_error()
    assert str(first) == f"rank 1 has left the team: {text}"
    assert (type(repeated), str(repeated)) == (type(first), str(first))


ID, OTHER, THIRD = (bytes([number] * 8) for number in range(3))


def test_rank_0_waits_for_all() -> None:
    """Rank 0 names the members that it waits for: to join, then to be ready."""
    root, member = TeamFormation(0, 3, ID), TeamFormation(1, 3, OTHER)
    assert root.missing_ranks() == [1, 2]
    assert member.missing_ranks() == [0]
    assert root.add(member.build_notice(Kind.JOIN, OTHER)) == []
    assert root.missing_ranks() == [2]
    prepares = dict(root.add(Message(0, 0, 2, Kind.JOIN, body=THIRD)))
    assert root.missing_ranks() == [1, 2]
    ((_, ready),) = member.add(prepares[1])
    root.add(ready)
    assert root.missing_ranks() == [2]
    assert not root.started


def test_a_member_that_restarts_must_be_ready_again() -> None:
    """The process before it cannot be ready for the new team, and PREPARE for that process has no effect."""
    root, old, new = TeamFormation(0, 2, ID), TeamFormation(1, 2, OTHER), TeamFormation(1, 2, THIRD)
    ((_, first),) = root.add(old.build_notice(Kind.JOIN, OTHER))
    ((_, stale),) = old.add(first)
    assert root.add(new.build_notice(Kind.JOIN, THIRD))
    assert [each.kind for _, each in root.add(stale)] == [Kind.PREPARE]
    assert not root.started
    assert new.add(first) == []
    assert new.ids == [b"", THIRD]


def test_a_message_of_a_call_starts_a_member() -> None:
    """A late PREPARE of an earlier team has no effect after a message of another member's call."""
    root, member = TeamFormation(0, 2, ID), TeamFormation(1, 2, OTHER)
    ((_, prepare),) = root.add(member.build_notice(Kind.JOIN, OTHER))
    member.add(prepare)
    team = member.team
    late = prepare._replace(body=THIRD + OTHER)
    member.add(Message(team, 1, 0, Kind.CALL))
    assert member.started
    assert member.add(late) == []
    assert member.team == team


def test_numpy_is_loaded_with_team_only() -> None:
    """`import tuplewire` loads no numpy; without numpy, the error names the extra."""
    program = (
        "import sys, tuplewire; assert 'numpy' not in sys.modules; sys.modules['numpy'] = None\n"
        "try: tuplewire.Team\nexcept tuplewire.TuplewireError as error: print(error)"
    )
    assert output_of(program) == "numpy is not installed: run pip install 'tuplewire[team]'\n"
