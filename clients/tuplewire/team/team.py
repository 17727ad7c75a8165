"""Teams: collective calls among the tasks of a barrier stage, or among any processes.

Used by programs and PySpark tasks. Owns the numbers of the calls, and the member's connection (members.py).
Not thread-safe: a call raises an error while another one runs. Requires numpy. Design: docs/design/teams.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from tuplewire import errors
from tuplewire.packing.packing import READ_ERRORS, pack_values, read_value
from tuplewire.settings.config import check_timeout
from tuplewire.subscription import Closeable
from tuplewire.team.members import Data, TeamConnection
from tuplewire.team.protocol import Kind
from tuplewire.values.group import check_whole
from tuplewire.values.task_ids import check_tasks

try:
    import numpy as np
except ImportError as missing:
    raise errors.TuplewireError("numpy is not installed: run pip install 'tuplewire[team]'") from missing

_Array = np.ndarray[Any, Any]
_ArrayLike: TypeAlias = "np.typing.ArrayLike"
_Op: TypeAlias = Literal["sum", "min", "max", "mean"]

MAX_DIRECT_BYTES = 1024 * 1024
"""A rank sends its whole array to all others if this takes at most this number of bytes."""

Steps = Generator[dict[int, Data], dict[int, Data], Any]
"""A call: it yields bytes to send, by rank, gets the bytes of its sources, and returns the result."""
_REDUCERS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "mean": np.add}


class Team(Closeable):
    """The processes that have some tasks as mailboxes, each with a rank. Use it in a `with` block.

    All ranks make the same calls in the same order; send() and recv() concern two ranks only. Each call has a
    timeout in seconds; None: the timeout of the team. A returned array belongs to the caller, and no call
    changes its arguments. Values are numpy arrays and scalars of bools, numbers, times, text or bytes, and
    the types of tuples: None, str, numbers, lists, dicts and so on. They are sent without pickle.

    Broken connections, tasks that move, and draining workers have no effect. Any TeamError breaks the team:
    every later call raises the same error. One call runs at a time; a call in another thread is an error.

    Example:
        >>> with tuplewire.Team(tasks=[1, 2, 3], rank=0) as team:  # ranks 1 and 2 do the same
        ...     names = team.all_gather("the first")
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
            **client: More arguments of Client, such as topology, credentials and ack_mode. The team chooses
                client_id, source and overflow.

        Raises:
            TeamTimeoutError: Some members have not joined; the error of rank 0 names them.
            TeamChangedError: Another process has joined with this rank.
            ConfigError, InvalidTaskError: There is no such rank, or a task is named twice or invalid.
        """
        super().__init__()
        self.tasks = tuple(tasks)
        """The tasks of the ranks."""
        self.size = len(self.tasks)
        """The number of ranks."""
        if len(check_tasks(tasks if isinstance(tasks, str | bytes) else self.tasks)) < self.size:
            raise errors.ConfigError("the tasks of a team must differ, and a task is named twice")
        if not 0 <= check_whole(rank, "rank") < self.size:
            raise errors.ConfigError(f"rank {rank} is not one of the {self.size} ranks of this team")
        self.rank = rank
        """The position of this process in the team."""
        self._timeout = check_timeout(timeout)
        self._lock = threading.Lock()
        self._failure: errors.TeamError | None = None
        self._last_numbers = Counter[object]()
        """The numbers of the last calls: of send(), of recv(), and of all other calls together."""
        self._connection = TeamConnection(self.tasks, rank, self._timeout, address=address, **client)
        self.formation_id = self._connection.formation.team
        """The id of this team formation; it differs after each restart of a member."""
        self._ranks = range(self.size)

    @classmethod
    def of_stage(
        cls, tasks: Iterable[int], *, address: str | None = None, timeout: float = 60.0, **client: Any
    ) -> Self:
        """Join the PySpark tasks of this barrier stage; the rank is the partition.

        If Spark runs the stage again, calls of the old attempt raise TeamChangedError.

        Args:
            tasks: At least one for each partition; more are not used.
            address, timeout, client: See Team().

        Raises:
            ConfigError: This is not a task of a barrier stage, or there are fewer tasks than partitions.
        """
        from pyspark import BarrierTaskContext, TaskContext

        context = TaskContext.get()
        if not isinstance(context, BarrierTaskContext):
            text = "this is not a task of a barrier stage, in which all tasks run at the same time"
            hint = "use mapInPandas(..., barrier=True), or rdd.barrier().mapPartitions(...)"
            raise errors.ConfigError(f"{text}: {hint}")
        ids, size = list(tasks), len(context.getTaskInfos())
        if len(ids) < size:
            raise errors.ConfigError(f"the stage has {size} tasks, but only {len(ids)} task ids are named")
        return cls(ids[:size], context.partitionId(), address=address, timeout=timeout, **client)

    @property
    def stale_messages(self) -> int:
        """The number of dropped messages of other teams, such as an older attempt of the stage."""
        return self._connection.stale_messages

    def __repr__(self) -> str:
        state = self._failure or "open"
        return f"<Team rank={self.rank} size={self.size} formation={self.formation_id:x} {state}>"

    # --- calls -----------------------------------------------------------------------------------

    def all_reduce(self, array: _ArrayLike, op: _Op = "sum", *, timeout: float | None = None) -> _Array:
        """Return the element-wise sum, min, max or mean of all ranks' arrays.

        Args:
            array: Of the same dtype and shape on all ranks. A number is an array without axes.
            op: The mean of integers is a float64. The sum of bools is True if any is.

        Returns:
            ((x0 + x1) + x2) + ... for each element, in rank order, so all ranks get the same bits.

        Raises:
            TeamMismatchError: A rank has made another call, or has another dtype or shape, or has left.
            TeamTimeoutError: Some ranks have not made the call in time; the error names them.
            RankLostError: The process of a rank has exited, or messages are lost.
            TeamAbortedError: Another rank has left with an error.
            TeamChangedError: Another process has joined with a rank of the team.
            UnsupportedValueError: A value has a type that cannot be sent.
            MessageError: There is no such op, root or rank, or not one value for each rank.
            TeamError: Another thread is in a call, or the team is closed.

        Example:
            >>> team.all_reduce([1, 2])  # by each of 3 ranks
            array([3, 6])
        """
        if not isinstance(op, str) or op not in _REDUCERS:
            raise errors.MessageError(f"op is one of {', '.join(_REDUCERS)}, not {op!r}")
        operand = np.asarray(array)
        if operand.dtype.kind not in "biufc" or isinstance(array, np.ma.MaskedArray):
            raise errors.UnsupportedValueError(f"all_reduce cannot sum masked arrays or {operand.dtype}")
        if op == "mean" and operand.dtype.kind in "biu":
            operand = operand.astype(np.float64)
        details = f" ({op}, {operand.dtype.name}, {'x'.join(map(str, operand.shape)) or 'a number'})"
        steps = reduction_steps(operand.reshape(-1), self.size, _REDUCERS[op])
        total: _Array = self._run("all_reduce", steps, self._ranks, timeout, details).reshape(operand.shape)
        return total if op != "mean" else np.true_divide(total, self.size, out=total)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Return once every rank has called it. For errors see all_reduce()."""
        self._run("barrier", _one_exchange(dict.fromkeys(self._ranks)), self._ranks, timeout)

    def all_gather(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return the values of all ranks, by rank. For errors see all_reduce()."""
        steps = _one_exchange(dict.fromkeys(self._ranks, value))
        return [*self._run("all_gather", steps, self._ranks, timeout).values()]

    def all_to_all(self, values: Sequence[Any], *, timeout: float | None = None) -> list[Any]:
        """Send each rank its element; return all ranks' elements for this one. See all_reduce()."""
        steps = _one_exchange(self._one_for_each(values))
        return [*self._run("all_to_all", steps, self._ranks, timeout).values()]

    def gather(self, value: Any, root: int = 0, *, timeout: float | None = None) -> list[Any] | None:
        """Return the values of all ranks, by rank, at the root, and None elsewhere. See all_reduce()."""
        sources = self._ranks if self.rank == self._check_rank(root) else ()
        received = self._run("gather", _one_exchange({root: value}), sources, timeout, f" (root {root})")
        return [*received.values()] if sources else None

    def broadcast(self, value: Any = None, root: int = 0, *, timeout: float | None = None) -> Any:
        """Return the root's value; the other ranks' are ignored. For errors see all_reduce()."""
        values_by_rank = dict.fromkeys(self._ranks, value) if self.rank == self._check_rank(root) else {}
        return self._run("broadcast", _one_exchange(values_by_rank), [root], timeout, f" (root {root})")[root]

    def scatter(
        self, values: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Return this rank's element of the root's list. For errors see all_reduce()."""
        values_by_rank = self._one_for_each(values) if self.rank == self._check_rank(root) else {}
        return self._run("scatter", _one_exchange(values_by_rank), [root], timeout, f" (root {root})")[root]

    def send(self, rank: int, value: Any, *, timeout: float | None = None) -> None:
        """Send to one rank. Waits while that rank has many unreceived values. For errors see all_reduce()."""
        self._run("send", _one_exchange({self._check_rank(rank, other=True): value}), (), timeout)

    def recv(self, rank: int, *, timeout: float | None = None) -> Any:
        """Return the next value that the given rank sent, in order. For errors see all_reduce()."""
        return self._run("recv", _one_exchange({}), [self._check_rank(rank, other=True)], timeout)[rank]

    def close(self, error: BaseException | None = None) -> None:
        """Leave the team; with an error, fail the other ranks' calls with it. A second call does nothing.

        Waits up to 3 seconds until the other ranks leave, then for acknowledgements. The end of the block
        calls it. Does nothing in a forked process.

        Raises:
            TeamError: Another thread is in a call: close the team later.
        """
        if not (self._connection.closing or self._is_inherited):
            with self._exclusive_call():
                self._connection.close(error or self._failure)
                self._failure = self._failure or errors.TeamError("the team is closed")

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)

    # --- the parts of calls ----------------------------------------------------------------------

    def _run(
        self, name: str, steps: Steps, sources: Collection[int], timeout: float | None, details: str = ""
    ) -> Any:
        """Make a call; return its result. details: added to its name, and equal on all ranks."""
        self._check_process()
        seconds = check_timeout(self._timeout if timeout is None else timeout)
        outgoing = next(steps)
        with self._exclusive_call():
            if self._failure is not None:
                raise self._failure.with_traceback(None)  # only one thread calls this
            kind, key = (Kind.SEND, name) if name in {"send", "recv"} else (Kind.CALL, "calls")
            number = self._last_numbers[key] = self._last_numbers[key] + 1
            self._connection.begin(number, f"{name} #{number}{details}", seconds)
            try:
                while True:
                    outgoing = steps.send(self._connection.exchange(outgoing, sources, kind))
            except StopIteration as end:
                return end.value
            except BaseException as error:
                text = f"a call was interrupted, by {type(error).__name__}: {error}"
                self._failure = error if isinstance(error, errors.TeamError) else errors.TeamError(text)
                raise

    def _exclusive_call(self) -> contextlib.ExitStack:
        if not self._lock.acquire(blocking=False):
            raise errors.TeamError("another thread is in a call of this team: only one may run")
        call = contextlib.ExitStack()
        call.callback(self._lock.release)
        return call

    def _check_rank(self, rank: int, *, other: bool = False) -> int:
        if rank not in self._ranks or (other and rank == self.rank):
            kind = "another" if other else "a"
            raise errors.MessageError(f"rank {rank} is not {kind} rank from 0 to {self.size - 1}")
        return rank

    def _one_for_each(self, values: Sequence[Any] | None) -> dict[int, Any]:
        if values is None or isinstance(values, Mapping | set | frozenset) or len(values) != self.size:
            given = "None" if values is None else f"a {type(values).__name__} of {len(values)}"
            raise errors.MessageError(f"values must be a list of {self.size}, one for each rank, not {given}")
        return dict(enumerate(values))


# --- values --------------------------------------------------------------------------------------


def pack_each(values: Mapping[int, Any]) -> dict[int, Data]:
    """Return values as bytes, by rank; pack each object once. Raises UnsupportedValueError."""
    by_id = {id(value): value for value in values.values()}
    try:
        packed = {each: pack_values([value]) for each, value in by_id.items()}
    except (TypeError, ValueError) as error:
        raise errors.UnsupportedValueError(f"a value cannot be sent: {error}") from error
    return {rank: packed[id(value)] for rank, value in values.items()}


def unpack_value(data: Data) -> Any:
    """Return the value in untrusted bytes. An array has its own memory. Raises MalformedError."""
    try:
        return read_value(bytes(data), 0)[0][0]
    except (*READ_ERRORS, KeyError, TypeError) as error:
        raise errors.MalformedError(f"a value of a team is malformed: {error}") from error


def _one_exchange(values: Mapping[int, Any]) -> Steps:
    """Return the steps of a call with one exchange; its result is the values of the sources."""
    received = yield pack_each(values)
    return {rank: unpack_value(received.pop(rank)) for rank in [*received]}  # one copy at a time


def reduction_steps(flat: _Array, size: int, reducer: np.ufunc) -> Steps:
    """Return the steps of a reduction: of whole arrays, or of a part of the array at each rank."""
    flat = np.ascontiguousarray(flat, flat.dtype.newbyteorder("<"))
    if (size - 1) * flat.nbytes <= MAX_DIRECT_BYTES:
        return _reduce((yield dict.fromkeys(range(size), flat.view(np.uint8).data)), flat.dtype, reducer)
    parts = enumerate(np.array_split(flat, size))
    total = _reduce((yield {rank: part.view(np.uint8).data for rank, part in parts}), flat.dtype, reducer)
    received = yield dict.fromkeys(range(size), total.view(np.uint8).data)
    return np.frombuffer(bytearray().join(received.values()), flat.dtype)


def _reduce(arrays: Mapping[int, Data], dtype: np.dtype[Any], reducer: np.ufunc) -> _Array:
    """Return ((x0 + x1) + x2) + ..., in a new array."""
    total = np.frombuffer(arrays[0], dtype).copy()
    for rank in range(1, len(arrays)):
        reducer(total, np.frombuffer(arrays[rank], dtype), out=total)
    return total
