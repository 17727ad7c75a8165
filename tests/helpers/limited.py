"""Workers in separate processes with smaller limits: some constants have other values there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tuplewire.processes import worker_processes
from tuplewire_service.command.entry import main
from tuplewire_service.messaging import server_stream as streamed_stream
from tuplewire_service.messaging.grpc import grpc_transport


@contextmanager
def limited_workers(limits: Mapping[str, float]) -> Iterator[None]:
    """Start the block's WorkerProcesses with these values of constants."""
    words_of = worker_processes.worker_command

    def words(*arguments: Any, **options: Any) -> list[str]:
        usual = words_of(*arguments, **options)
        module = usual.index("tuplewire_service")
        return [*usual[:module], __name__, json.dumps(dict(limits)), *usual[module + 1 :]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_processes, "worker_command", words)
        yield


def _limit(name: str, value: float) -> None:
    """Set a constant to another value in each module that has it."""
    modules = [each for each in (streamed_stream, grpc_transport) if hasattr(each, name)]
    assert modules, name
    for each in modules:
        setattr(each, name, value)


if __name__ == "__main__":
    for item in json.loads(sys.argv.pop(1)).items():
        _limit(*item)
    sys.exit(main())
