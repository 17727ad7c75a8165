"""Windows over tuples, by count and by time: when each is due, and which tuples it has.

Source: Storm's `WindowManager` with its trigger and eviction policies, and `TupleWindow`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import attrgetter
from typing import Any, NamedTuple, Self

from tuplewire.errors import MessageError, TopologyError
from tuplewire_topology.authoring.tuples import Tuple

_MOST_SECONDS = 1e15
_MOST_WINDOWS = 2.0**51
"""From 0 to the time of a tuple: beyond, one window's end would be the same number as the next one's."""


@dataclass(frozen=True, slots=True)
class TupleWindow:
    """The tuples of one window, in order: of arrival, or of their time.

    new, expired: those that have come, and gone, since the window before. start, end: its time, in seconds;
    it has what is later than start and not later than end. None for windows by count.
    """

    tuples: Sequence[Tuple]
    new: Sequence[Tuple] = ()
    expired: Sequence[Tuple] = ()
    start: float | None = None
    end: float | None = None

    def __iter__(self) -> Iterator[Tuple]:
        return iter(self.tuples)

    def __len__(self) -> int:
        return len(self.tuples)


@dataclass(frozen=True, slots=True)
class Window:
    """Which windows a bolt works on; made by count() or seconds().

    length: tuples, or seconds. every: a window is due after so many more; it tumbles where that is the
    length. timestamp: the field that has a tuple's time, or what returns it, in seconds since 1970; None: the
    time at which it arrives. lag: how many seconds a tuple may be behind. late: the stream for later ones.
    """

    length: float
    every: float
    by_count: bool
    timestamp: str | Callable[[Tuple], float] | None = None
    lag: float = 0.0
    late: str | None = None

    @classmethod
    def count(cls, length: int, every: int | None = None) -> Self:
        """Return windows of so many tuples, one after so many more; None: after as many.

        Raises TopologyError unless 0 < every <= length.
        """
        return cls(length, length if every is None else every, by_count=True)

    @classmethod
    def seconds(
        cls,
        length: float,
        every: float | None = None,
        *,
        timestamp: str | Callable[[Tuple], float] | None = None,
        lag: float = 0.0,
        late: str | None = None,
    ) -> Self:
        """Return windows of so many seconds, one after so many more; None: after as many.

        Raises TopologyError unless 0 < every <= length, and for a negative lag. Where tuples have no time of
        their own, also for a length that is no multiple of every, and for a lag or late tuples.
        """
        return cls(length, length if every is None else every, False, timestamp, lag, late)

    def __post_init__(self) -> None:
        whole = not self.by_count or (type(self.length) is int and type(self.every) is int)
        if not (whole and 0 < self.every <= self.length < math.inf):
            raise TopologyError(
                f"a window of {self.length!r}, every {self.every!r}: both are more than 0, the length is not "
                "below every, and counts are whole numbers"
            )
        if not 0 <= self.lag < math.inf:
            raise TopologyError(f"a lag of {self.lag!r} seconds: it is 0 or more")
        if self.timestamp is None and (self.lag or self.late):
            raise TopologyError("lag and late are for tuples with a time of their own: name its field, too")
        if not self.by_count and self.timestamp is None and self.length % self.every:
            raise TopologyError(
                f"a window of {self.length:g} s, every {self.every:g} s, by arrival: the length is a multiple"
            )


class CountWindows:
    """Windows by count, as tuples arrive."""

    def __init__(self, window: Window) -> None:
        self._length, self._every = int(window.length), int(window.every)
        self._held: deque[Tuple] = deque()
        self._new: list[Tuple] = []
        self._expired: list[Tuple] = []

    def add(self, message: Tuple) -> Iterator[TupleWindow]:
        """Take a tuple in; give the window that it makes due."""
        self._held.append(message)
        self._new.append(message)
        if len(self._held) > self._length:
            self._expired.append(self._held.popleft())
        if len(self._new) == self._every:
            yield from self.rest()

    def rest(self) -> Iterator[TupleWindow]:
        """Give what is left as a window, if anything is new: there will be no more."""
        if self._new:
            new, self._new = self._new, []
            expired, self._expired = self._expired, []
            yield TupleWindow(list(self._held), new, expired)


class _Timed(NamedTuple):
    at: float
    message: Tuple


class TimeWindows:
    """Windows by time. Their ends are multiples of `every`, as in Storm.

    passed: the time up to which all windows were given; a tuple of then, or before, is late.
    """

    def __init__(self, window: Window) -> None:
        self._length, self._every = window.length, window.every
        self._most = min(_MOST_SECONDS, window.every * _MOST_WINDOWS)
        self._held: list[_Timed] = []
        self._expired: list[Tuple] = []
        self._end = -math.inf
        """Of the last window."""
        self.passed = -math.inf

    def add(self, message: Tuple, at: Any) -> bool:
        """Take a tuple in; False if it is late. MessageError for what is no time."""
        number: Any = at if isinstance(at, Real) else math.nan
        if not -self._most <= number <= self._most:  # NaN is not, either
            raise MessageError(
                f"the time of a tuple in a window is a number of seconds, at most {self._most:g}, and not "
                f"{str(at)[:100]}: convert it from a datetime or another unit"
            )
        at = float(at)
        if at <= self.passed:
            return False
        held = self._held
        held.insert(bisect_right(held, at, key=attrgetter("at")), _Timed(at, message))
        return True

    def advance(self, now: float) -> Iterator[TupleWindow]:
        """Give, in order, the windows that end by this time; those without tuples are left out."""
        while self._held:
            end = max(self._end + self._every, math.ceil(self._held[0].at / self._every) * self._every)
            if end > now:
                break
            begin, before = end - self._length, self._end
            self._end = end
            gone = bisect_right(self._held, begin, key=attrgetter("at"))
            self._expired += [each.message for each in self._held[:gone]]
            del self._held[:gone]
            inside = self._held[: bisect_right(self._held, end, key=attrgetter("at"))]
            if inside:
                expired, self._expired = self._expired, []
                new = [each.message for each in inside if each.at > before]
                yield TupleWindow([each.message for each in inside], new, expired, begin, end)
        self.passed = max(self.passed, now)

    def rest(self) -> Iterator[TupleWindow]:
        """Give every window up to the one in which the last tuple is new: there will be no more."""
        if self._held and self._held[-1].at > self._end:
            yield from self.advance(math.ceil(self._held[-1].at / self._every) * self._every)
