"""The pages: what they tell to paste works as it stands, in order, in a fresh directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.packaging import ROOT
from helpers.pasted import ELSEWHERE, PASTED, PASTED_ON_SPARK, Pasted, blocks, check, paste

_SECONDS = 100.0


def test_every_page_with_programs_is_pasted() -> None:
    """A block in `python` or `sh` is one that a test runs; what none runs is `py` or `shell`."""
    folders = ("*.md", "*/*.md", "docs/*/*.md")
    files = (path for pattern in folders for path in ROOT.glob(pattern) if not path.is_symlink())
    pages = {str(path.relative_to(ROOT)) for path in files}
    with_programs = {page for page in pages if blocks(page)}
    pasted = {page for each in (*PASTED, PASTED_ON_SPARK) for page in each.pages}
    assert with_programs == pasted | set(ELSEWHERE)
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


@pytest.mark.slow
@pytest.mark.parametrize("pasted", PASTED, ids=lambda each: each.pages[0])
def test_pasted(pasted: Pasted, tmp_path: Path) -> None:
    """Every block of a page, one after the other."""
    check(pasted, paste(pasted.pages, tmp_path, _SECONDS))
