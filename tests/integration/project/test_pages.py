"""The pages: their programs work unchanged, in order, in a new directory."""

from __future__ import annotations

from codeop import compile_command
from pathlib import Path

import pytest
from helpers.pasted import ELSEWHERE, PASTED, PASTED_ON_SPARK, PASTED_ONCE, Pasted, blocks, check, paste
from helpers.tools import ROOT

_SECONDS = 240.0
PAGES = [page for each in (*PASTED, *PASTED_ON_SPARK, PASTED_ONCE) for page in each.pages]
FOR_A_FILE = "into a file"


def test_every_page_with_programs_is_pasted() -> None:
    """Blocks in `python` or `sh` are run by a test; blocks without a test are in `py` or `shell`."""
    folders = ("*.md", "*/*.md", "docs/*/*.md", "docs/*/*/*.md")
    files = (path for pattern in folders for path in ROOT.glob(pattern) if not path.is_symlink())
    pages = {str(path.relative_to(ROOT)) for path in files}
    assert {page for page in pages if blocks(page)} == {*PAGES, *ELSEWHERE}
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


@pytest.mark.parametrize("page", PAGES)
def test_a_prompt_takes_it(page: str) -> None:
    """Before Python 3.13, an empty line ends an indented block; pages in another form say where to paste."""
    if FOR_A_FILE in " ".join((ROOT / page).read_text(encoding="utf-8").split()):
        return
    for language, text in blocks(page):
        typed: list[str] = []
        for line in [*text.splitlines(), ""] if language == "python" else []:
            typed.append(line)
            if compile_command("\n".join(typed), page, "single") is not None:
                typed.clear()
        assert typed == [], "the prompt waits for more"


@pytest.mark.slow
@pytest.mark.parametrize(
    "times", [pytest.param(1, marks=pytest.mark.part), pytest.param(2, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("pasted", PASTED, ids=lambda each: each.pages[0])
def test_pasted(pasted: Pasted, times: int, tmp_path: Path) -> None:
    """Every block of a page runs, one after another, also if a reader pastes the page again."""
    check(pasted, paste(pasted.pages * times, tmp_path, _SECONDS))
