"""A pytest plugin that runs each test many times on a loaded machine: `make flicker TEST=... RUNS=50`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
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


class Flicker:
    """The load of one pytest run, and the outcomes of its tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._processes: int = config.getoption("--load")
        self._outcomes: dict[tuple[str, str], str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Run busy processes while the tests run."""
        busy = [subprocess.Popen([sys.executable, "-c", _LOAD]) for _ in range(self._processes)]
        try:
            result = yield
            assert all(each.poll() is None for each in busy), "the load has ended by itself"
            return result
        finally:
            for each in busy:
                each.kill()
                each.wait()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the worst outcome of a run: a failed teardown counts, too."""
        name = f"{report.location[0]}::{report.location[2].partition('[')[0]}"
        run = (name, report.nodeid)
        if self._outcomes.get(run, "passed") == "passed":
            self._outcomes[run] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the number of passed, failed and skipped runs of each test."""
        terminalreporter.section(f"runs beside {self._processes} busy processes")
        counts = Counter((name, outcome) for (name, _), outcome in self._outcomes.items())
        for name in dict.fromkeys(name for name, _ in self._outcomes):
            told = (f"{counts[name, outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
            terminalreporter.write_line(f"{', '.join(told)}: {name}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(Flicker(config), "flicker-counts")
