"""Child processes find the same packages as their program: from a zip file, or added in a notebook."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import tuplewire
with tuplewire.local("0-1") as worker, tuplewire.Client(worker.address) as client:
    client.send(1, b"x")
    client.flush(30)
    print(tuplewire.__file__)
"""


def test_a_program_with_packages_on_its_path_alone(tmp_path: Path) -> None:
    """A worker starts with Tuplewire only on sys.path, not in site-packages or PYTHONPATH."""
    root = Path(__file__).parents[3]
    packages = [path for path in sys.path if path.endswith("site-packages")]
    archive = tmp_path / "tuplewire.zip"
    with zipfile.ZipFile(archive, "w") as into:
        for name in ("clients/tuplewire", "service/tuplewire_service", "topology/tuplewire_topology"):
            for file in (root / name).rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    into.write(file, file.relative_to((root / name).parent))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, str(archive), *packages],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(archive) in done.stdout
