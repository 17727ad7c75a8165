"""Closes senders if a program drops their client, or exits, without close().

The worker can then forget the session immediately, without waiting for a resume. It never depends on this.
Design: docs/design/credit.md.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import Future

from tuplewire.connection.loop import messaging_thread
from tuplewire.connection.sending_end import SendingEnd
from tuplewire.session.ledger import DropReason
from tuplewire.text.events import event_logger
from tuplewire.text.formatting import counted

logger = event_logger(__name__)

_COLLECTED_SECONDS = 10.0
"""The time in which a dropped client's messages are still sent in the background; as in close()."""
_EXIT_SECONDS = 2.0
"""The time for acknowledgements at the end of a program, for all its clients together."""

_open_senders: weakref.WeakSet[SendingEnd] = weakref.WeakSet()
_closing: set[Future[None]] = set()


def close_automatically(client: object, sender: SendingEnd) -> None:
    """Close a sender if its client is dropped, or the program exits, without close()."""
    _open_senders.add(sender)
    # Not at exit: _close_all() closes all remaining senders together.
    weakref.finalize(client, _on_collected, sender, os.getpid()).atexit = False


def _on_collected(sender: SendingEnd, pid: int) -> None:
    """Close in the background: a finalizer may run on any thread, also the event loop's."""
    # A forked child inherits the finalizer, but not the connection.
    if pid != os.getpid() or sender.buffer.closing:
        return
    closing = sender.thread.submit(_close([sender], _COLLECTED_SECONDS))
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)
    _warn(sender, "was dropped")


def _warn(sender: SendingEnd, ending: str) -> None:
    messages = counted(sender.buffer.pending_messages, "message")
    warnings.warn(
        f"a client of {sender.address} {ending} without close(), with {messages} not acknowledged yet; "
        "call close(), or use it in a `with` block",
        ResourceWarning,
        stacklevel=3,
    )


async def _close(senders: Sequence[SendingEnd], timeout: float) -> None:
    await asyncio.gather(*(sender.close_async(timeout) for sender in senders))
    for sender in senders:
        if messages := sender.buffer.ledger().dropped.get(DropReason.CLOSED):
            reason = "not acknowledged when their client ended; call close() or flush() first"
            extra = {"address": sender.address, "messages": messages, "reason": reason}
            logger.warning("client.not_closed", extra=extra)


@atexit.register
def _close_all() -> None:
    open_senders = [sender for sender in _open_senders if not sender.buffer.ended]
    for sender in open_senders:
        sender.buffer.close_reason = ", as the program ends: send and close before its exit handlers run"
        if not sender.buffer.closing:
            _warn(sender, "was still open at the exit of the program")
    for closing in list(_closing):  # their senders are closed below, with the shorter timeout
        closing.cancel()
    if open_senders:
        messaging_thread().run(_close(open_senders, _EXIT_SECONDS))


# A forked child has no connections, so it has no senders to close.
os.register_at_fork(after_in_child=_open_senders.clear)
