"""Shared by all tests: no test may leave threads, processes or tasks behind."""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import fork_server, leaks
from hypothesis import settings
from warm_spark import WarmSpark

SPARK = Path(__file__).parent / "spark"

leaks.install()
fork_server.install()

# A shell starts background programs with Ctrl-C ignored, and programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example is not meaningful on a shared machine.
settings.register_profile("tuplewire", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)  # used by make quick
settings.load_profile("tuplewire")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test` uses with several processes."""
    parser.addoption(
        "--one-spark", action="store_true", help="run the tests on Spark in one of the processes"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign whole files to processes; all of tests/spark to one process, with the only Spark session.

    Each further session takes as long as ten tests. tests/spark takes most of the run, so it starts first.
    """
    if not config.getoption("one_spark") or config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSpark(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return str(SPARK) if SPARK in (config.rootpath / file).parents else file

    return OneSpark(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give long tests more time than the others before they count as hung."""
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(1200))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on its own event loop, or with its fixture run_coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    run: Any = pyfuncitem.funcargs.get("run_coroutine", asyncio.run)
    names = inspect.signature(pyfuncitem.obj).parameters
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def warm_spark() -> Iterator[WarmSpark]:
    """Make every Spark start quickly, also in other processes."""
    warm = WarmSpark()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in warm.environment.items():
            patch.setenv(name, value)
        yield warm


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaks a thread, a child process or an asyncio task, unless a wider fixture has it."""
    with leaks.no_leaks():
        yield


@pytest.fixture
def no_fork_server() -> Iterator[None]:
    """Start the programs of a test in new interpreters."""
    with fork_server.no_fork_server():
        yield
