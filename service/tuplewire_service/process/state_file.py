"""A worker's state file: records a clean shutdown, or how many messages a crash would lose at most.

Used by worker_runtime.py. Owns the file. Thread-safe. Source: Storm's `LocalState`, which has the heartbeat
of a worker. Design: docs/design/moves.md.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuplewire.identity.files import write_atomically
from tuplewire.text.events import LogRateLimiter, event_logger

logger = event_logger(__name__)

_WRITE_SECONDS = 1.0
_MAX_MESSAGES = 1 << 53  # the largest integer that a metric represents exactly
_MAX_BYTES = 4096
_KEYS = {"worker_id": str, "incarnation": int, "ended": bool, "unretained_messages": int}


class StateFile:
    """The file of one worker, and the losses of its predecessor, the process before.

    It is written after changes, at most once a second, so the changes of the last second may be missing.
    Errors of reading and writing are logged, and the worker continues.
    """

    def __init__(self, path: Path, worker_id: str, incarnation: int) -> None:
        """Read the predecessor's state, and log its losses."""
        self._path = path
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._log_rate = LogRateLimiter()
        self._write_lock = threading.Lock()
        self._is_final = False
        self._last_written: int | None = None
        self.predecessor_possibly_lost = self._read()
        """Maximum number of messages lost with the predecessor; 0 if it drained, or without a usable file."""

    def _read(self) -> int:
        if not self._path.exists():
            return 0
        try:
            state = _load(self._path, self._worker_id)
        except (OSError, ValueError, RecursionError) as error:
            extra = {"path": str(self._path), "reason": f"it is not a state of this worker: {error}"}
            logger.warning("state_file.not_used", extra=extra)
            return 0
        lost: int = 0 if state["ended"] else state["unretained_messages"]
        if lost:
            reason = "`messages` is the maximum number lost with this worker's previous process"
            about = {"messages": lost, "incarnation": state["incarnation"], "reason": reason}
            logger.warning("worker.predecessor_failed", extra=about)
        return lost

    async def update_periodically(self, count_unretained: Callable[[], int]) -> None:
        """Update the file until cancelled. `count_unretained` counts messages that no other process has."""
        while True:
            if (messages := count_unretained()) != self._last_written:
                await asyncio.to_thread(self._write, messages)
            await asyncio.sleep(_WRITE_SECONDS)

    def record_shutdown(self) -> None:
        """Record that the worker has drained: its ledger accounts for all messages."""
        self._write(0, is_final=True)

    def _write(self, messages: int, *, is_final: bool = False) -> None:
        state = {
            "worker_id": self._worker_id,
            "incarnation": self._incarnation,
            "ended": is_final,
            "unretained_messages": messages,
        }
        with self._write_lock:
            if self._is_final:  # a late periodic write must not replace the final state
                return
            self._is_final = is_final
            try:
                write_atomically(self._path, json.dumps(state))
            except OSError as error:
                if self._log_rate.count_event("not written"):
                    extra = {"path": str(self._path), "reason": str(error)}
                    logger.warning("state_file.not_written", extra=extra)
                return
            self._last_written = messages


def _load(path: Path, worker_id: str) -> dict[str, Any]:
    if not path.is_file():  # reading a pipe would block
        raise ValueError("it is not a file")
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    state = json.loads(data)
    if not isinstance(state, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - content of a file, not an argument
    for key, kind in _KEYS.items():
        if type(state.get(key)) is not kind:
            raise ValueError(f"{key} is {state.get(key)!r}")
    if not 0 <= state["unretained_messages"] <= _MAX_MESSAGES:
        raise ValueError(f"unretained_messages is {state['unretained_messages']}")
    if state["worker_id"] != worker_id:
        raise ValueError(f"it belongs to worker {state['worker_id']!r}")
    return state
