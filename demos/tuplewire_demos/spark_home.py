"""A home of Spark from which its Pythons start quickly.

Spark puts its own copy of PySpark in front on their path, a zip without compiled files: each Python compiles
what it imports anew. This home has no copy, so that they find the installed package, which is compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tuplewire_demos.java import cache_dir

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
        new.mkdir()
        for part in _PARTS:
            if (installed / part).exists():
                (new / part).symlink_to(installed / part)
        try:
            new.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    return home
