"""An unreliable connection that breaks repeatedly, in a separate process."""

from __future__ import annotations

from multiprocessing.connection import Connection

from helpers.program import Threads, serve
from tuplewire_service.testing.fault_proxy import FaultProxy

_STEADY_SECONDS = 2.0


def unsteady_proxy(pipe: Connection, target: str) -> None:
    """Run a proxy that cuts all connections to the target every other second; answers `address`."""
    threads = Threads()

    def cut(proxy: FaultProxy) -> None:
        while not threads.stop.wait(_STEADY_SECONDS):
            proxy.cut()

    with FaultProxy(target) as proxy:
        threads.start(cut, proxy)
        serve(pipe, {"address": lambda: proxy.address}, threads.errors)
        threads.end()
