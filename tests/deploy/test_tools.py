"""The installer of the tools."""

from __future__ import annotations

import subprocess

from helpers.tools import ROOT, require_tool


def test_the_installer_is_a_clean_shell_script() -> None:
    """Its syntax is right; what it installs is checked by the tests that use it."""
    bash = require_tool("bash", "every Linux")
    subprocess.run([bash, "-n", ROOT / "deploy" / "install-tools.sh"], check=True, timeout=30)
