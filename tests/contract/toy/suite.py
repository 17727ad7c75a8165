"""Run the shipped conformance kit on the installed toy; prints the name of each test that has passed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tuplewire.config import SessionSettings
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.factory import TRANSPORT_KEY, TransportFactory
from tuplewire_service.testing import RelayConformance
from tuplewire_service.testing.scenery import RECEIVE_MESSAGES


class Suite(RelayConformance):
    """As found by the name on the command line."""

    def make_context(self) -> IContext:
        return TransportFactory.make_context({TRANSPORT_KEY: sys.argv[1]})

    def conf(self, settings: SessionSettings, worker_id: str) -> Mapping[str, Any]:
        return {
            "toy.session": settings,
            "toy.receive_messages": RECEIVE_MESSAGES,
            "toy.worker_id": worker_id,
        }


for name in sys.argv[2:] or [each for each in dir(Suite) if each.startswith("test_")]:
    getattr(Suite(), name)()
    print(name, flush=True)
