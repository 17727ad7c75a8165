"""The pure parts of Team: forming, matching of calls, values, and the bits of sums."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest

from tuplewire.errors import MalformedError, TeamError, TeamMismatchError, UnsupportedValueError
from tuplewire.team import team as module
from tuplewire.team.members import Steps
from tuplewire.team.protocol import DTYPES, WINDOW, Call, Forming, Matching, Message, unpack
from tuplewire.team.team import (
    FLAT_BYTES,
    ROOT_BYTES,
    decoded,
    encoded,
    reduce_at_root,
    reduce_flat,
    reduce_sharded,
    reduction,
)

ALGORITHMS = (reduce_flat, reduce_at_root, reduce_sharded)
REDUCERS = (np.add, np.minimum, np.maximum)
_SEGMENT = 256

# --- bits ------------------------------------------------------------------------------------------------


def all_ranks(algorithm: Callable[..., Steps], arrays: list[Any], reducer: Any) -> list[Any]:
    """Run an algorithm on all ranks, and return the result of each."""
    size = len(arrays)
    calls = [algorithm(each, encoded(each), rank, size, reducer) for rank, each in enumerate(arrays)]
    got: list[Any] = [None] * size
    results: list[Any] = [None] * size
    while any(each is None for each in results):
        steps: list[Any] = [({}, ())] * size
        for rank, call in enumerate(calls):
            try:
                steps[rank] = call.send(got[rank])
            except StopIteration as end:
                results[rank] = end.value
        got = [{source: arrived(steps[source][0][rank]) for source in steps[rank][1]} for rank in range(size)]
    return results


def arrived(value: Message) -> Message:
    """Return a value as its receiver gets it."""
    return value._replace(body=bytearray(value.body))


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
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("reducer", REDUCERS, ids=lambda each: each.__name__)
def test_all_algorithms_give_the_same_bits(dtype: str, reducer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are ((x0 + x1) + x2) + ..., in all three algorithms, on all ranks, at any size and length."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", _SEGMENT)
    items = _SEGMENT // np.dtype(dtype).itemsize
    for size in range(1, 9):
        for length in (0, 1, size - 1, size + 1, items - 1, items, items + 1, 3 * items + 5):
            arrays = arrays_of(dtype, length, size)
            before = [each.copy() for each in arrays]
            expected = without_nan_signs(reduce(reducer, arrays))
            for algorithm in ALGORITHMS:
                results = all_ranks(algorithm, arrays, reducer)
                assert len({each.tobytes() for each in results}) == 1
                assert without_nan_signs(results[0]) == expected, (algorithm.__name__, size, length)
                assert all(each.dtype == dtype and each.flags.writeable for each in results)
                assert not any(np.shares_memory(each, mine) for each in results for mine in arrays if length)
            assert [each.tobytes() for each in arrays] == [each.tobytes() for each in before]


@pytest.mark.parametrize(
    ("size", "size_bytes", "name"),
    [
        (2, FLAT_BYTES, "reduce_flat"),
        (2, FLAT_BYTES + 1, "reduce_sharded"),
        (16, FLAT_BYTES // 15, "reduce_flat"),
        (16, FLAT_BYTES // 15 + 1, "reduce_sharded"),
        (17, ROOT_BYTES, "reduce_at_root"),
        (17, ROOT_BYTES + 1, "reduce_sharded"),
    ],
)
def test_the_algorithm_depends_on_size_and_bytes(size: int, size_bytes: int, name: str) -> None:
    """Small arrays take one step, many ranks use a root, and large arrays are sharded."""
    array = np.zeros(size_bytes, "uint8")
    steps: Any = reduction(array, encoded(array), 0, size, np.add)
    assert steps.__name__ == name


# --- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, b"", b"x" * 100, "text", 7, 2**80, 1.5, True, [1, [2.5, None]], {"a": (1, b"2")}, np.float32(1.5)],
    ids=repr,
)
def test_a_value_arrives_with_its_type(value: object) -> None:
    """Values are equal after the journey, and have the same type."""
    got = decoded(arrived(encoded(value)))
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
    """Arrays keep their items and shape; the receiver may write to them."""
    got = decoded(arrived(encoded(array)))
    assert got.dtype == array.dtype.newbyteorder("<")
    assert np.array_equal(got, array)
    assert got.shape == array.shape
    assert got.flags.writeable
    assert not np.shares_memory(decoded(encoded(array)), array)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), [lambda: 0]])
def test_other_types_are_refused(value: object) -> None:
    """Objects are refused: no value is pickled."""
    with pytest.raises(UnsupportedValueError, match="cannot be sent"):
        encoded(value)


@pytest.mark.parametrize(
    "message",
    [
        Message(kind=1, dtype=9, shape=(3,), body=bytearray(20)),
        Message(kind=1, dtype=0, shape=(3,), body=bytearray(24)),
        Message(kind=3, body=bytearray(b"\x91\xc1")),
        Message(kind=3, body=bytearray()),
        Message(kind=3, body=bytearray(b"\x80")),
    ],
)
def test_malformed_values_are_an_error(message: Message) -> None:
    """Bytes of another program never become a value of a wrong shape."""
    with pytest.raises(MalformedError):
        decoded(message)


# --- matching --------------------------------------------------------------------------------------------


def test_messages_are_their_bytes() -> None:
    """A header has 32 bytes; only the first piece has the shape."""
    value = Message(
        2**64 - 1, 7, 3, Call.SUM, 9, 1, size=600_000, kind=1, shape=(3, 25_000), body=b"x" * 600_000
    )
    first, second = (unpack(value.packed(piece)) for piece in range(value.pieces()))
    assert first is not None
    assert second is not None
    assert (first.shape, bytes(first.body)) == ((3, 25_000), b"x" * 2**19)
    assert (second.shape, second.piece, bytes(second.body)) == ((), 1, b"x" * (600_000 - 2**19))
    assert len(value.packed(1)) == 32 + 600_000 - 2**19


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x" * 31,
        b"\xff" * 40,
        Message(call=Call.JOIN).packed()[:33],
        Message(call=Call.ABORT).packed() + b"x" * (2**19 + 1),
        Message(call=Call.SUM, size=9, body=b"x" * 8).packed(),
        Message(call=Call.SUM, size=2**19).packed(1),
    ],
    ids=["empty", "short", "no header", "no shape", "large", "part", "no such piece"],
)
def test_other_payloads_are_not_messages(payload: bytes) -> None:
    """Payloads of other programs are no messages of a team."""
    assert unpack(payload) is None


def call(code: Call, number: int, **facts: Any) -> Message:
    """Return the first piece of a value of rank 1."""
    return Message(number=number, rank=1, call=code, **facts)


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (call(Call.BARRIER, 5), call(Call.GATHER, 5), "barrier #5: rank 1 has called gather #5"),
        (
            call(Call.SUM, 5, dtype=12, shape=(6, 6)),
            call(Call.SUM, 5, dtype=12, shape=(6, 7)),
            r"all_reduce #5 \(float64, 6x6\): rank 1 has called all_reduce #5 \(float64, 6x7\)",
        ),
        (
            call(Call.SUM, 5, dtype=12),
            call(Call.MAX, 5, dtype=12),
            r"has called all_reduce\(max\) #5 \(float64, a number\)",
        ),
        (call(Call.SUM, 5, dtype=12), call(Call.SUM, 5, dtype=11), "float32"),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_another_call_is_an_error(mine: Message, theirs: Message, words: str, *, early: bool) -> None:
    """Another call, operation, dtype or shape is an error that names both, in either order."""
    matching = Matching()
    steps: list[Callable[[], None]] = [partial(matching.begin, mine, 0, [1]), partial(matching.add, theirs)]
    first, second = reversed(steps) if early else steps
    first()
    with pytest.raises(TeamMismatchError, match=words):
        second()


def test_another_root_is_an_error() -> None:
    """A message from a rank that is not the root of this call shows that the ranks chose other roots."""
    matching = Matching()
    matching.begin(call(Call.BROADCAST, 1), 0, [2])
    with pytest.raises(TeamMismatchError, match="with another root"):
        matching.add(call(Call.BROADCAST, 1))


def test_a_message_of_an_earlier_call_is_an_error() -> None:
    """A rank that still sends in a call that needed nothing from it has made another call."""
    matching = Matching()
    matching.begin(call(Call.SCATTER, 1), 0, ())
    matching.begin(call(Call.BARRIER, 2), 0, [1])
    with pytest.raises(TeamMismatchError, match="scatter #1: rank 1 has called gather #1"):
        matching.add(call(Call.GATHER, 1))


def test_two_roots_are_an_error() -> None:
    """If this rank was a root, a value of another root in the same call is an error, even later."""
    matching = Matching()
    matching.begin(call(Call.BROADCAST, 1), 0, ())
    matching.begin(call(Call.BARRIER, 2), 0, [1])
    with pytest.raises(TeamMismatchError, match=r"broadcast #1: .* with another root"):
        matching.add(call(Call.BROADCAST, 1))


def test_memory_is_bounded() -> None:
    """A rank that ignores the window is an error, not a full memory."""
    matching = Matching()
    for number in range(1, WINDOW + 1):
        matching.add(call(Call.SEND, number))
    with pytest.raises(TeamError, match="more than 16 pieces"):
        matching.add(call(Call.SEND, WINDOW + 1))


# --- forming ---------------------------------------------------------------------------------------------


def test_one_member_is_a_team() -> None:
    """A team of one starts alone."""
    forming = Forming(0, 1, 7)
    assert forming.started
    assert forming.ids == (7,)
    assert not forming.repeat()


def test_rank_0_waits_for_all() -> None:
    """Rank 0 names the members that it waits for: to join, then to be ready."""
    root, member = Forming(0, 3, 7), Forming(1, 3, 8)
    assert root.missing() == [1, 2]
    assert member.missing() == [0]
    ((_, join),) = member.repeat()
    assert root.add(join) == []
    assert root.missing() == [2]
    prepares = dict(root.add(Message(9, 0, 2, Call.JOIN)))
    assert root.missing() == [1, 2]
    ((_, ready),) = member.add(prepares[1])
    root.add(ready)
    assert root.missing() == [2]
    assert not root.started


def test_a_member_that_restarts_must_be_ready_again() -> None:
    """READY of an earlier process, and PREPARE for it, have no effect."""
    root, old, new = Forming(0, 2, 7), Forming(1, 2, 8), Forming(1, 2, 9)
    ((_, first),) = root.add(old.repeat()[0][1])
    ((_, stale),) = old.add(first)
    assert root.add(new.repeat()[0][1])
    assert root.add(stale) == []
    assert not root.started
    assert new.add(first) == []
    assert not new.ids


# --- packages --------------------------------------------------------------------------------------------


def test_numpy_is_loaded_with_team_only() -> None:
    """`import tuplewire` loads no numpy; without numpy, the error names the extra."""
    program = (
        "import sys, tuplewire; assert 'numpy' not in sys.modules; sys.modules['numpy'] = None\n"
        "try: tuplewire.Team\nexcept tuplewire.TuplewireError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "numpy is not installed: run pip install 'tuplewire[team]'\n"
