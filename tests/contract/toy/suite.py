"""Run the shipped conformance kit on the installed toy transport; print the name of each passed test."""

from __future__ import annotations

import sys

from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import TransportConformance


class Suite(TransportConformance):
    """The conformance kit, on the transport named on the command line."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: sys.argv[1]})


for name in sys.argv[2:] or [each for each in dir(Suite) if each.startswith("test_")]:
    getattr(Suite(), name)()
    print(name, flush=True)
