"""Teams: collective calls among the tasks of a barrier stage, or among any processes.

Used by programs and PySpark tasks. Owns the numbers of the calls, and the member's connection (members.py).
Only one call runs at a time, in the caller's thread. Requires numpy. Design: docs/design/teams.md.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from tuplewire import errors
from tuplewire.packing.packing import FAULTS, pack_values, read_value
from tuplewire.settings.config import checked_timeout
from tuplewire.subscription import Live
from tuplewire.team.members import Members, Steps
from tuplewire.team.protocol import DTYPES, Call, Message
from tuplewire.values.task_ids import check_tasks

try:
    import numpy as np
except ImportError as missing:
    raise errors.TuplewireError("numpy is not installed: run pip install 'tuplewire[team]'") from missing

_Array = np.ndarray[Any, Any]
_NONE, _ARRAY, _BYTES, _VALUE = range(4)
"""The kinds of values in messages."""
_NOTHING = Message()

FLAT_RANKS = 16
FLAT_BYTES = 1024 * 1024
"""The `flat` algorithm is used for up to FLAT_RANKS ranks, if each sends at most this number of bytes."""
ROOT_BYTES = 64 * 1024
SEGMENT_BYTES = 4 * 1024 * 1024
"""The bytes of an array that `sharded` sums at a time."""

_REDUCERS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "mean": np.add}


class Team(Live):
    """The processes that have some tasks as mailboxes, each with a rank. Use it in a `with` block.

    All ranks make the same calls in the same order; send() and recv() concern two ranks only. Each call has a
    timeout in seconds; None: the timeout of the team. A returned array belongs to the caller, and no call
    changes its arguments. Values are numpy arrays of bools, integers, floats and complex numbers, bytes, and
    the types of tuples: None, str, numbers, lists, dicts and so on. They are sent without pickle.

    Broken connections, tasks that move, and draining workers have no effect. Any TeamError breaks the team:
    every later call raises the same error. One call runs at a time; a call in another thread is an error.
    """

    def __init__(
        self,
        tasks: Iterable[int],
        rank: int,
        *,
        address: str | None = None,
        timeout: float = 60.0,
        **client: Any,
    ) -> None:
        """Join the processes that have these tasks as mailboxes; this process has tasks[rank].

        Args:
            tasks: The tasks, the same for all members. No other program may receive from them.
            rank: The position of this process in `tasks`.
            address: The worker's address. Default: TUPLEWIRE_ADDRESS.
            timeout: The maximum time until all members have joined, and the default for calls, in seconds.
            **client: More arguments of the Client, such as topology, credentials and ack_mode.

        Raises:
            TeamTimeoutError: Some members have not joined; the error names them.
            TeamChangedError: Another process has joined with this rank.
            ConfigError: There is no such rank, or a task is named twice.
        """
        named = list(tasks)
        if len(check_tasks(named)) < len(named):
            raise errors.ConfigError("a team has a task for each rank, and a task is named twice")
        if not 0 <= rank < len(named):
            raise errors.ConfigError(f"rank {rank} is not one of the {len(named)} ranks of this team")
        seconds = checked_timeout(timeout)
        self._timeout = math.inf if seconds is None else seconds
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._broken: errors.TeamError | None = None
        self._closed = False
        self._numbers: Counter[object] = Counter()
        """The numbers of the last calls: of send() and recv() by rank, and of all other calls together."""
        self._members = Members(named, rank, address, self._timeout, client)
        self.rank = rank
        """The position of this process in the team."""
        self.size = len(named)
        """The number of ranks."""
        self.tasks = tuple(named)
        """The tasks of the ranks."""
        self.generation = self._members.forming.team
        """The id of this team formation; it differs after each restart of a member."""
        self._others = [other for other in range(self.size) if other != rank]

    @classmethod
    def of_stage(
        cls, tasks: Iterable[int], *, address: str | None = None, timeout: float = 60.0, **client: Any
    ) -> Self:
        """Join the PySpark tasks of this barrier stage; the rank is the partition.

        Uses as many of `tasks` as the stage has tasks. If Spark runs the stage again, the new attempt takes
        the tasks over, and calls of the old one raise TeamChangedError. For other arguments, see Team().

        Raises:
            ConfigError: This is not a task of a barrier stage, or there are fewer tasks than partitions.
        """
        from pyspark import BarrierTaskContext, TaskContext

        context = TaskContext.get()
        if not isinstance(context, BarrierTaskContext):
            raise errors.ConfigError(
                "this is not a task of a barrier stage, in which all tasks run at the same time: use "
                "mapInPandas(..., barrier=True), or rdd.barrier().mapPartitions(...)"
            )
        named, size = list(tasks), len(context.getTaskInfos())
        if len(named) < size:
            raise errors.ConfigError(f"the stage has {size} tasks, but only {len(named)} task ids are named")
        return cls(named[:size], context.partitionId(), address=address, timeout=timeout, **client)

    @property
    def stale_messages(self) -> int:
        """The number of dropped messages of other teams, such as an older attempt of the stage."""
        return self._members.stale

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._broken is None else f"broken: {self._broken}"
        return f"<Team rank={self.rank} size={self.size} generation={self.generation:016x} {state}>"

    # --- calls -----------------------------------------------------------------------------------

    def all_reduce(
        self, array: Any, op: Literal["sum", "min", "max", "mean"] = "sum", *, timeout: float | None = None
    ) -> _Array:
        """Return the element-wise sum, min, max or mean of all ranks' arrays, in rank order.

        Each element is ((x0 + x1) + x2) + ..., so all ranks get the same bits. Arrays have the same dtype and
        shape on all ranks; a number is an array without axes. The mean of integers is a float64. The sum of
        bools is True if any is.

        Raises:
            TeamMismatchError: A rank has made another call, or has another dtype or shape, or has left.
            TeamTimeoutError: Some ranks have not made the call in time; the error names them.
            RankLostError: The process of a rank has exited, or messages are lost.
            TeamAbortedError: Another rank has left with an error.
            TeamChangedError: Another process has joined with a rank of the team.
            UnsupportedValueError: A value has a type that cannot be sent.
            TeamError: Another thread is in a call, or the team is closed.
        """
        if op not in _REDUCERS:
            raise errors.MessageError(f"op is one of {', '.join(_REDUCERS)}, not {op!r}")
        mine = np.asarray(array)
        if op == "mean" and mine.dtype.kind in "biu":
            mine = mine.astype(np.float64)
        parcel = encoded(mine)
        if parcel.kind != _ARRAY:
            raise errors.UnsupportedValueError(f"all_reduce cannot sum the dtype {mine.dtype}")
        steps = reduction(_little(mine).reshape(-1), parcel, self.rank, self.size, _REDUCERS[op])
        total: _Array = self._call(parcel._replace(call=Call[op.upper()]), steps, timeout).reshape(mine.shape)
        return total if op != "mean" else np.true_divide(total, self.size, dtype=total.dtype)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Return once every rank has called it. For errors see all_reduce()."""
        self._exchange(Call.BARRIER, [_NOTHING] * self.size, self._others, self._others, timeout)

    def all_gather(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return the values of all ranks, by rank. For errors see all_reduce()."""
        values = [encoded(value)] * self.size
        return self._exchange(Call.ALL_GATHER, values, self._others, self._others, timeout)

    def all_to_all(self, values: Sequence[Any], *, timeout: float | None = None) -> list[Any]:
        """Send each rank its element; return the elements that all ranks sent to this one."""
        each = self._one_for_each(values)
        return self._exchange(Call.ALL_TO_ALL, each, self._others, self._others, timeout)

    def gather(self, value: Any, root: int = 0, *, timeout: float | None = None) -> list[Any] | None:
        """Return the values of all ranks, by rank, at the root, and None elsewhere. See all_reduce()."""
        values, ours = [encoded(value)] * self.size, self.rank == self._checked(root)
        to, sources = ([], self._others) if ours else ([root], [])
        got = self._exchange(Call.GATHER, values, to, sources, timeout)
        return got if ours else None

    def broadcast(self, value: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """Return the root's value. For errors see all_reduce()."""
        values = [encoded(value)] * self.size if self.rank == self._checked(root) else []
        return self._from_root(Call.BROADCAST, values, root, timeout)

    def scatter(
        self, values: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Return this rank's element of the root's list. For errors see all_reduce()."""
        each = self._one_for_each(values) if self.rank == self._checked(root) else []
        return self._from_root(Call.SCATTER, each, root, timeout)

    def send(self, rank: int, value: Any, *, timeout: float | None = None) -> None:
        """Send to one rank. Waits while that rank has many unreceived values. For errors see all_reduce()."""
        values, to = [encoded(value)] * self.size, [self._checked(rank, other=True)]
        self._exchange(Call.SEND, values, to, [], timeout)

    def recv(self, rank: int, *, timeout: float | None = None) -> Any:
        """Return the next value that the given rank sent, in order. For errors see all_reduce()."""
        return self._exchange(Call.SEND, [], [], [self._checked(rank, other=True)], timeout)[rank]

    def close(self, error: BaseException | None = None) -> None:
        """Leave the team; with an error, fail the other ranks' calls with it. A second call does nothing.

        Waits up to a second until the other ranks leave, too. The end of the `with` block calls it. Does
        nothing in a forked process. Raises TeamError while another thread is in a call: close it later.
        """
        if self._closed or self._pid != os.getpid():
            return
        with self._alone():
            self._closed = True
            self._members.close(error or self._broken)
            self._broken = self._broken or errors.TeamError("the team is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)

    # --- the parts of calls ----------------------------------------------------------------------

    def _call(self, call: Message, steps: Steps, timeout: float | None, of: object = None) -> Any:
        """Make a call, and return its result. of: the calls that share a number; None: all ranks' calls."""
        seconds = checked_timeout(timeout)
        if self._pid != os.getpid():
            raise errors.ClosedError("the team belongs to the parent process; create one in this process")
        with self._alone():
            if self._broken is not None:
                raise self._broken
            self._numbers[of] += 1
            call = call._replace(number=self._numbers[of], body=b"")
            try:
                return self._members.run(call, steps, self._timeout if seconds is None else seconds)
            except BaseException as error:
                text = f"a call has ended early, by {type(error).__name__}: {error}"
                self._broken = error if isinstance(error, errors.TeamError) else errors.TeamError(text)
                raise

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise errors.TeamError("another thread is in a call of this team: only one may run")
        try:
            yield
        finally:
            self._lock.release()

    def _exchange(
        self, call: Call, values: list[Message], to: list[int], sources: list[int], timeout: float | None
    ) -> list[Any]:
        """Send values to ranks, and receive from ranks; return all values by rank."""

        def steps() -> Steps:
            return (yield {rank: values[rank] for rank in to}, sources)

        of = (tuple(to), tuple(sources)) if call == Call.SEND else None
        got = self._call(Message(call=call), steps(), timeout, of)
        if values:
            got[self.rank] = values[self.rank]
        return [decoded(got.get(rank, _NOTHING)) for rank in range(self.size)]

    def _from_root(self, call: Call, values: list[Message], root: int, timeout: float | None) -> Any:
        to, sources = (self._others, []) if self.rank == root else ([], [root])
        return self._exchange(call, values, to, sources, timeout)[root]

    def _checked(self, rank: int, *, other: bool = False) -> int:
        if not 0 <= rank < self.size or (other and rank == self.rank):
            raise errors.MessageError(f"rank {rank} is this process, or not one of {self.size} ranks")
        return rank

    def _one_for_each(self, values: Sequence[Any] | None) -> list[Message]:
        if values is None or len(values) != self.size:
            raise errors.MessageError(f"values must have an element for each of the {self.size} ranks")
        return [encoded(value) for value in values]


# --- values --------------------------------------------------------------------------------------


def _little(array: _Array) -> _Array:
    """Return the array in C order and little-endian, copied only if necessary."""
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def encoded(value: Any) -> Message:
    """Return a value as bytes. Raises UnsupportedValueError."""
    if type(value) is bytes:
        return Message(kind=_BYTES, body=value)
    if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
        data = _bytes_of(_little(value).reshape(-1))
        return Message(dtype=DTYPES.index(value.dtype.name), kind=_ARRAY, shape=value.shape, body=data)
    try:
        return Message(kind=_VALUE, body=pack_values([value]))
    except (TypeError, ValueError) as error:
        raise errors.UnsupportedValueError(f"a {type(value).__name__} cannot be sent: {error}") from error


def decoded(message: Message) -> Any:
    """Return the value in untrusted bytes. An array has its own memory. Raises MalformedError."""
    data, kind = message.body, message.kind
    try:
        if kind == _ARRAY:
            own = data if isinstance(data, bytearray) else bytearray(data)
            dtype = np.dtype(DTYPES[message.dtype]).newbyteorder("<")
            return np.frombuffer(own, dtype).reshape(message.shape)
        if kind == _VALUE:
            return read_value(bytes(data), 0)[0][0]
        return bytes(data) if kind == _BYTES else None
    except (*FAULTS, KeyError, TypeError) as error:
        raise errors.MalformedError(f"a value of a team is malformed: {error}") from error


# --- algorithms ----------------------------------------------------------------------------------


def reduction(flat: _Array, whole: Message, rank: int, size: int, reducer: np.ufunc) -> Steps:
    """Return the steps of a reduction, by the algorithm for this number of ranks and bytes."""
    if size <= FLAT_RANKS and (size - 1) * flat.nbytes <= FLAT_BYTES:
        return reduce_flat(flat, whole, rank, size, reducer)
    if size > FLAT_RANKS and flat.nbytes <= ROOT_BYTES:
        return reduce_at_root(flat, whole, rank, size, reducer)
    return reduce_sharded(flat, whole, rank, size, reducer)


def reduce_flat(flat: _Array, whole: Message, rank: int, size: int, reducer: np.ufunc) -> Steps:
    """All ranks send to all ranks, and each one sums."""
    others = [each for each in range(size) if each != rank]
    got = yield (dict.fromkeys(others, whole), others)
    return _reduced(got, flat, rank, size, reducer)


def reduce_at_root(flat: _Array, whole: Message, rank: int, size: int, reducer: np.ufunc) -> Steps:
    """Rank 0 gathers, sums and broadcasts."""
    if rank:
        yield ({0: whole}, ())
        return _read((yield ({}, [0]))[0], flat)
    others = range(1, size)
    total = _reduced((yield ({}, others)), flat, rank, size, reducer)
    yield (dict.fromkeys(others, whole._replace(body=_bytes_of(total))), ())
    return total


def reduce_sharded(flat: _Array, whole: Message, rank: int, size: int, reducer: np.ufunc) -> Steps:
    """Rank i sums shard i of each segment, then all ranks gather the shards."""
    others = [each for each in range(size) if each != rank]
    total = np.empty_like(flat)
    items = SEGMENT_BYTES // flat.itemsize
    for start in range(0, max(1, len(flat)), items):
        segment, target = flat[start : start + items], total[start : start + items]
        ends = [len(segment) * each // size for each in range(size + 1)]
        shards = [slice(ends[each], ends[each + 1]) for each in range(size)]
        pieces = {each: whole._replace(body=_bytes_of(segment[shards[each]])) for each in others}
        got = yield (pieces, others)
        target[shards[rank]] = _reduced(got, segment[shards[rank]], rank, size, reducer)
        mine = whole._replace(body=_bytes_of(target[shards[rank]]))
        got = yield (dict.fromkeys(others, mine), others)
        for each, parcel in got.items():
            target[shards[each]] = _read(parcel, target[shards[each]])
    return total


def _reduced(got: Mapping[int, Message], mine: _Array, rank: int, size: int, reducer: np.ufunc) -> _Array:
    """Return ((x0 + x1) + x2) + ..., in a new array."""
    total = (mine if rank == 0 else _read(got[0], mine)).copy()
    for each in range(1, size):
        reducer(total, mine if each == rank else _read(got[each], mine), out=total)
    return total


def _read(parcel: Message, like: _Array) -> _Array:
    """Return the items in a parcel. Raises MalformedError if they are not as many as in another array."""
    if len(parcel.body) != like.nbytes:
        raise errors.MalformedError(f"{len(parcel.body)} bytes of an array where {like.nbytes} are expected")
    return np.frombuffer(parcel.body, like.dtype)


def _bytes_of(flat: _Array) -> memoryview:
    return flat.view(np.uint8).data
