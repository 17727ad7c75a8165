"""What a PySpark task tells the worker beside it of the executors that it runs, for status, top and page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Self

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import RefusedError, TuplewireError
from tuplewire.events import event_logger
from tuplewire.wire import control_pb2

logger = event_logger(__name__)

PATIENCE_SECONDS = 0.5
"""A PySpark task that is cancelled has two seconds left in all."""
_EVERY_SECONDS = 1.0


class Teller:
    """Tells it each second, in a thread of its own, until the block ends. The topology waits for none of it.

    A worker that refuses it is told no more: it may be an older one.
    """

    def __init__(
        self,
        control: ControlClient,
        program: str,
        components: Callable[[], Sequence[control_pb2.ComponentStatus]],
    ) -> None:
        """Tell nothing yet. control: ends with the block. components: none while there is nothing to tell."""
        self._control = control
        self._program = program
        self._components = components
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tuplewire teller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._control.close()

    def _main(self) -> None:
        told = False
        while not self._ended.wait(_EVERY_SECONDS):
            if components := self._components():
                told = True
                if not self._tell(components):
                    return
        if told:
            self._tell(())

    def _tell(self, components: Sequence[control_pb2.ComponentStatus]) -> bool:
        """Return whether it is of use to go on."""
        try:
            self._control.tell_topology(self._program, components)
        except RefusedError as error:
            logger.info("topology.not_shown", extra={"worker": self._control.address, "reason": str(error)})
            return False
        except TuplewireError:
            pass  # the worker does not answer now; what needs it will say so
        return True
