"""A pytest plugin that runs each test many times on a loaded machine: `make flicker TEST=... RUNS=50`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

_LOAD = "while True: pass"
_RUN = "flicker_run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the number of runs and for the load."""
    group = parser.getgroup("flicker")
    group.addoption("--runs", type=int, default=50, help="how often each test runs (default 50)")
    group.addoption(
        "--load",
        type=int,
        default=os.cpu_count(),
        help="processes that never wait (default: one for each core)",
    )


@pytest.fixture
def flicker_run(request: pytest.FixtureRequest) -> int:
    """Return the number of this run of the test."""
    run: int = request.param
    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize each test with the number of the run."""
    metafunc.fixturenames.append(_RUN)
    metafunc.parametrize(_RUN, range(metafunc.config.getoption("--runs")), indirect=True)


class Load:
    """Processes that keep every core busy while the tests of one pytest run."""

    def __init__(self, processes: int) -> None:
        self._processes = processes

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Run the processes while the tests run."""
        busy = [subprocess.Popen([sys.executable, "-c", _LOAD]) for _ in range(self._processes)]
        try:
            result = yield
            assert all(each.poll() is None for each in busy), "the load has ended by itself"
            return result
        finally:
            for each in busy:
                each.kill()
                each.wait()


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(Load(config.getoption("--load")), "flicker-load")
