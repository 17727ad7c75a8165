"""A home of Spark from which its Pythons start quickly.

Spark puts its own copy of PySpark in front on their path, a zip without compiled files: each Python compiles
what it imports anew. In place of the zip this home has a directory with the package as it is installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tuplewire_demos.java import cache_dir

_COPIES = Path("python", "lib")
_PARTS = ("bin", "conf", "data", "jars", "sbin")


def pyspark_place() -> Path | None:
    """Return where PySpark is installed; None: nowhere."""
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else None


def spark_home(installed: Path) -> Path:
    """Return a home of the installed PySpark, of links in the cache directory; SPARK_HOME comes before it."""
    if given := os.environ.get("SPARK_HOME"):
        return Path(given)
    place = hashlib.blake2b(str(installed).encode(), digest_size=4).hexdigest()
    home = cache_dir() / f"spark-{version('pyspark')}-{place}"
    if not home.exists():
        new = home.with_name(f"{home.name}.{os.getpid()}")
        for path, target in _links(installed):
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).symlink_to(target)
        try:
            new.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    return home


def _links(installed: Path) -> Iterator[tuple[Path, Path]]:
    for part in _PARTS:
        if (installed / part).exists():
            yield Path(part), installed / part
    for copy in (installed / _COPIES).glob("*.zip"):
        package = re.split("[-.]", copy.name)[0]  # of pyspark.zip and py4j-0.10.9.9-src.zip
        if (spec := find_spec(package)) and spec.origin:
            yield _COPIES / copy.name / package, Path(spec.origin).parent
