"""Mutation testing: change one expression of a file at a time, and list the changes that no test notices.

Run it with `make mutate FILES=... [TESTS=...] [COUNT=n] [SEED=n]`. It works in a copy of the project, so you
can continue to edit. A change that survives shows a missing test, or has no effect.

Example: make mutate FILES=clients/tuplewire/session/send.py TESTS="tests/unit tests/property" COUNT=40
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PROJECT_FILES = ("pyproject.toml", "README.md")
COPIED = ("clients", "service", "topology", "demos", "proto", "tests", "docs", "deploy", *PROJECT_FILES)
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=30", "--hypothesis-profile=quick")
QUICK = ("-m", "not slow and not long")
RUN_SECONDS = 300
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
MOST_CONSTANT = 100


class Mutant(NamedTuple):
    """One change. start, end: the bytes of the file that `new` replaces."""

    file: str
    line: int
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        """Return the changed file."""
        return source[: self.start] + self.new.encode() + source[self.end :]


def replacements(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """Yield the replacements of a node, or of a part of it."""
    match node:
        case ast.Compare(ops=[operator]):
            changed = ast.Compare(node.left, [OPPOSITES[type(operator)]()], node.comparators)  # type: ignore[list-item]
            yield node, f"({ast.unparse(changed)})"
        case ast.BoolOp(op=operator):
            yield node, f"({ast.unparse(ast.BoolOp(OPPOSITES[type(operator)](), node.values))})"  # type: ignore[arg-type]
        case ast.BinOp(op=ast.Add() | ast.Sub() as operator):
            yield node, f"({ast.unparse(ast.BinOp(node.left, OPPOSITES[type(operator)](), node.right))})"  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.Constant(value=int() as number) if not isinstance(number, bool) and number <= MOST_CONSTANT:
            yield node, f"({number + 1})"
            yield node, f"({number - 1})"
        case ast.If() | ast.IfExp():
            yield node.test, "True"
            yield node.test, "False"
        case ast.Return(value=ast.expr() as value):
            yield node, f"return not ({ast.unparse(value)})"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete():
            yield node, "pass"


def mutants(file: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a file. Strings, errors, types, logging, __repr__ and __str__ stay unchanged."""
    starts = list(accumulate(map(len, source.splitlines(keepends=True)), initial=0))
    found: list[Mutant] = []

    def visit(node: ast.AST) -> None:
        text = ast.unparse(node) if isinstance(node, ast.Expr) else ""
        shows = isinstance(node, ast.FunctionDef) and node.name in {"__repr__", "__str__"}
        if shows or isinstance(node, ast.JoinedStr | ast.Raise) or text.startswith(("logger.", "super().")):
            return
        for at, new in replacements(node):
            start, end = (
                starts[row - 1] + column
                for row, column in ((at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset))
            )
            found.append(Mutant(file, at.lineno, start, end, new))
        for name, child in ast.iter_fields(node):
            if name not in {"annotation", "returns"}:
                for each in child if isinstance(child, list) else [child]:
                    if isinstance(each, ast.AST):
                        visit(each)

    visit(ast.parse(source))
    return found


def copied(into: Path) -> None:
    """Copy the parts of the project that tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, into / name)


def passes(root: Path, tests: list[str]) -> bool:
    """Run the tests in a copy; False if one fails, or they take too long."""
    paths = os.pathsep.join(str(root / name) for name in ("clients", "service", "topology", "demos", "tests"))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *PYTEST, *QUICK, *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, timeout=RUN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Try a sample of mutants; return 1 if one survives."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("files", nargs="+", help="the files to change")
    parser.add_argument(
        "--tests", nargs="+", default=["tests/unit", "tests/property"], help="the tests to run"
    )
    parser.add_argument("--count", type=int, default=20, help="the number of mutants to try (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the sample (default 1)")
    given = parser.parse_args()
    found = [each for file in given.files for each in mutants(file, (ROOT / file).read_bytes())]
    chosen = random.Random(given.seed).sample(found, min(given.count, len(found)))
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        root = Path(directory)
        copied(root)
        if not passes(root, given.tests):
            print("the tests fail without any change: run them first", file=sys.stderr)
            return 2
        for number, mutant in enumerate(chosen, 1):
            path = root / mutant.file
            source = path.read_bytes()
            path.write_bytes(mutant.apply(source))
            noticed = not passes(root, given.tests)
            path.write_bytes(source)
            survived += not noticed
            old = source[mutant.start : mutant.end].decode().split("\n")[0]
            verdict = "noticed " if noticed else "SURVIVED"
            print(
                f"{number}/{len(chosen)} {verdict} {mutant.file}:{mutant.line}  {old}  ->  {mutant.new}",
                flush=True,
            )
    noticed_of = f"{len(chosen) - survived} of {len(chosen)} noticed"
    print(f"{noticed_of}; the files have {len(found)} mutants; seed {given.seed}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
