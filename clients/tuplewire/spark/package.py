"""Writes the client as one zip file for Spark: `python -m tuplewire.spark.package FILE.zip`.

For --py-files, SparkContext.addPyFile and SparkSession.addArtifact(pyfile=True). grpcio and protobuf have
compiled parts, which Python cannot import from a zip: install them on the executors.
"""

from __future__ import annotations

import argparse
import zipfile
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("tuplewire", "tuplewire_topology")
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""A fixed date, so that the same files result in the same zip."""


def write_package(target: Path) -> None:
    """Write `tuplewire` and `tuplewire_topology` into a zip; create its directory, and replace an old zip."""
    packages = [Path(spec.origin).parent for spec in map(find_spec, _PACKAGES) if spec and spec.origin]
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package, path in ((each, path) for each in packages for path in sorted(each.rglob("*.py"))):
            entry = zipfile.ZipInfo(path.relative_to(package.parent).as_posix(), _ZIP_DATE)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def main() -> None:
    """Write the zip to the path on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tuplewire.spark.package", description="Zip the client for Spark."
    )
    parser.add_argument("file", type=Path, help="the zip to write")
    target: Path = parser.parse_args().file
    write_package(target)
    print(f"{target}: spark-submit --py-files {target} ..., or spark.addArtifact('{target}', pyfile=True)")


if __name__ == "__main__":
    main()
