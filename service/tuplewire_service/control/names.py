"""Names in requests: deduplicated, limited in number, and processed in slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from tuplewire.errors import MalformedError

_Name = TypeVar("_Name", bound=Hashable)

MOST_NAMES = 100_000
_TURN_NAMES = 500


def distinct(names: Sequence[_Name], what: str) -> list[_Name]:
    """Return each name once, in order. Raises MalformedError if there are too many; `what` describes them."""
    if len(names) > MOST_NAMES:
        raise MalformedError(f"{len(names)} {what} in a request, and {MOST_NAMES} are allowed: ask in parts")
    return list(dict.fromkeys(names))


async def in_turns(names: Iterable[_Name], size: int = _TURN_NAMES) -> AsyncIterator[Collection[_Name]]:
    """Yield `size` names at a time, and let the event loop process messages in between."""
    left = iter(names)
    while some := list(islice(left, size)):
        yield some
        await asyncio.sleep(0)
