"""Builds the site from the pages in all folders of the repository: `make docs`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import tuplewire
from tuplewire_service.command.cli import command_parser

DOCS = Path(__file__).parent
MERMAID = DOCS.parent / "build" / "docs" / "mermaid.min.js"

project = "Tuplewire"
release = tuplewire.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# The root of the repository is the source: a link works on the site as it does in the repository.
root_doc = "docs/index"
include_patterns = ["*.md", "[cdpst]*/*.md", "tests/tools/bench/README.md", "docs/**.md", "docs/**.ipynb"]
exclude_patterns = [".*", "build", "dist", "clients/SPARK.md"]  # a link to a page of docs/
templates_path = ["_templates"]
html_theme = "furo"
html_title = f"Tuplewire {release}"
html_static_path = ["_static", str(MERMAID)] if MERMAID.exists() else []
html_js_files = ["mermaid.min.js", "pictures.js"] if MERMAID.exists() else []
html_additional_pages = {"index": "start.html"}
html_copy_source = False
html_search_scorer = str(DOCS / "scorer.js")

myst_heading_anchors = 4
nb_execution_mode = "off"  # a test executes the notebooks

default_role = "code"  # in a docstring, a single backtick is code
autoclass_content = "both"  # the arguments of a class are in the docstring of its __init__
autodoc_member_order = "bysource"
autodoc_type_aliases = {"_ArrayLike": "numpy.typing.ArrayLike"}
# A directive that lists its :members: also needs :no-members: and :no-inherited-members:.
autodoc_default_options = {"members": True, "inherited-members": "int, str, tuple, BaseException"}


class Commands(SphinxDirective):
    """Shows the help of every command, as the parsers have it."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each command."""
        os.environ.update(COLUMNS="96", NO_COLOR="1")
        return [_section(parser) for parser in _parsers(command_parser(["run"]))]


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and the parsers of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _parsers(each)


def _section(parser: argparse.ArgumentParser) -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(parser.prog)])
    section += nodes.title(text=parser.prog)
    shown = parser.format_help()
    section += nodes.literal_block(shown, shown, language="text")
    return section


def _nest(_: Sphinx, page: str, source: list[str]) -> None:
    """Put below their lists the design pages and the examples, to which the lists have links."""
    if page in {"docs/design/README", "docs/examples/README"}:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n[!R]*\n```\n"
    if page == "docs/examples/README":
        for path in sorted(DOCS.glob("examples/*.py")) + sorted(DOCS.glob("examples/*.js")):
            source[0] += f"\n## {path.name}\n\n```{{literalinclude}} {path.name}\n```\n"


def setup(app: Sphinx) -> None:
    """Add what the pages need: the commands, and pictures that are text where no script runs."""
    app.connect("source-read", _nest)
    app.add_directive("commands", Commands)
    app.add_lexer("mermaid", TextLexer)
