"""The worker's image, built as operators build it, and unpacked for an OCI runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers.container import require_namespaces
from helpers.tools import ROOT, require_tool

NAME_OF_AN_INDEX = "index-of-this-machine.invalid"
"""Used in pip's configuration during the build; it must not occur in the image."""


def build_image(layout: Path) -> None:
    """Build the image into an OCI layout. Earlier downloads are used again."""
    require_namespaces()  # the build mounts, too
    for tool in ("buildah", "skopeo", "mmdebstrap"):
        require_tool(tool, f"Debian's {tool}")
    trusted = f"{os.environ.get('PIP_TRUSTED_HOST', '')} {NAME_OF_AN_INDEX}"
    built = subprocess.run(
        [ROOT / "deploy" / "build-image.sh", "--out", layout],
        env=os.environ | {"PYTHON": sys.executable, "PIP_TRUSTED_HOST": trusted},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert built.returncode == 0, built.stderr


def unpack(layout: Path, bundle: Path) -> None:
    """Make a bundle of an image: its files in `rootfs`, and `config.json` for an OCI runtime."""
    umoci = require_tool("umoci", "Debian's umoci")
    command = [umoci, "unpack", "--image", f"{layout}:dev", str(bundle)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
