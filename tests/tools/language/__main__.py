"""Check that pages, docstrings, comments, errors and help are in plain English; part of `make lint`.

Three counts for each part of the repository: words and phrases of words.txt, sentences with a clause as their
subject ("What was dropped is counted"), and wh-words (see _WH). A part may not exceed its limits in
limits.txt, and the limits can only be lowered.

    python -m language                    check the repository
    python -m language --list service     print every finding in a folder
    python -m language --lower            lower the limits to the current counts
    python -m language --commit FILE      check the subject of a commit message
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from language.prose import comments, docstrings, proto_comments, sentences, texts

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMITS = HERE / "limits.txt"
FOLDERS = ("clients", "service", "topology", "demos", "deploy", "docs", "tests")
PARTS = {
    "pages": ["*.md", "docs/**/*.md", "deploy/**/*.md", "tests/**/*.md"],
    "proto": ["proto/**/*.proto"],
    **{folder: [f"{folder}/**/*.py"] for folder in FOLDERS},
}
_SKIPPED = re.compile(r"(^|/)(build|node_modules|\.\w+)/|_pb2(_grpc)?\.py$")
_CLAUSE = re.compile(r"(What(ever)?|Who(ever)?|Which(ever)?|Whether|That which|Those (who|that|whose))\b")
_WH = re.compile(r"\b(what|who|whom|whoever|whatever|whose|those)\b", re.IGNORECASE)
_SUBJECT = re.compile(r"[a-z][a-z0-9-]*: [A-Z][^ ]* .*[^.]$")
_MOST_SUBJECT = 60


KINDS = ("words", "clauses", "wh")
"""The kinds of findings."""

_LINES = (HERE / "words.txt").read_text(encoding="utf-8").splitlines()
WORDS: dict[str, str] = dict(line.split(" -> ") for line in _LINES)
"""The words and phrases to avoid, with their replacements."""
_LONGEST_FIRST = sorted(WORDS, key=len, reverse=True)
_ANY = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in _LONGEST_FIRST)
_PATTERN = re.compile(rf"(?<![\w-])(?:{_ANY})(?![\w-])", re.IGNORECASE)


def files(part: str) -> list[Path]:
    """Return the files of a part."""
    found = {path for pattern in PARTS[part] for path in ROOT.glob(pattern)}
    return sorted(path for path in found if not _SKIPPED.search(path.relative_to(ROOT).as_posix()))


def prose_of(path: Path) -> Iterator[str]:
    """Yield the passages of a file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tree = ast.parse(source)
        for found in (docstrings, texts):
            yield from found(tree)
        yield from comments(source)
    elif path.suffix == ".proto":
        yield from proto_comments(source)
    else:
        yield source


def findings(text: str) -> Iterator[tuple[str, Counter[str]]]:
    """Yield each finding in a passage, and its counts."""
    for sentence in sentences(text):
        for match in _PATTERN.finditer(sentence):
            word = " ".join(match[0].lower().split())
            yield f"{match[0]!r} -> {WORDS[word]}: {sentence}", Counter(words=1)
        if _CLAUSE.match(sentence) and not sentence.endswith("?"):
            yield f"a clause as subject: {sentence}", Counter(clauses=1)
        if wh := len(_WH.findall(sentence)):
            yield f"{wh} of what, who, those: {sentence}", Counter(wh=wh)


def counted(part: str, listed: str | None = None) -> Counter[str]:
    """Count the findings of a part; print the findings below the folder `listed`."""
    counts: Counter[str] = Counter()
    for path in files(part):
        name = path.relative_to(ROOT).as_posix()
        for text in prose_of(path):
            for finding, count in findings(text):
                counts.update(count)
                if listed is not None and name.startswith(listed):
                    print(f"{name}: {finding}")
    return counts


def subject_problem(message: str) -> str:
    """Return the problem of a commit message's subject; empty if there is no problem."""
    subject = message.partition("\n")[0]
    if len(subject) > _MOST_SUBJECT:
        return f"the subject has {len(subject)} characters; at most {_MOST_SUBJECT}: {subject}"
    if not _SUBJECT.match(subject):
        return f"the subject is not `area: Imperative ...`, without a full stop: {subject}"
    return ""


def main() -> int:
    """Check, and return the exit status: 1 if a part exceeds its limits."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="language", description=description)
    parser.add_argument("--list", metavar="FOLDER", help="print every finding in a folder, or a file")
    parser.add_argument("--lower", action="store_true", help="lower the limits to the present counts")
    parser.add_argument("--commit", metavar="FILE", type=Path, help="check the subject of a commit message")
    arguments = parser.parse_args()
    if arguments.commit:
        problem = subject_problem(arguments.commit.read_text(encoding="utf-8"))
        print(problem, file=sys.stderr)
        return bool(problem)
    found = {part: counted(part, arguments.list) for part in PARTS}
    limits = (line.split() for line in LIMITS.read_text(encoding="utf-8").splitlines())
    known = {part: dict(zip(KINDS, map(int, counts), strict=True)) for part, *counts in limits}
    if arguments.lower:
        known = {
            part: {kind: min(each[kind], found[part][kind]) for kind in KINDS} for part, each in known.items()
        }
        rows = (f"{part} {' '.join(map(str, each.values()))}\n" for part, each in known.items())
        LIMITS.write_text("".join(rows), encoding="utf-8")
    beyond = [
        f"{part}: {found[part][kind]} findings of the kind {kind!r}, at most {limit}"
        for part, each in known.items()
        for kind, limit in each.items()
        if found[part][kind] > limit
    ]
    if beyond:
        print(*beyond, sep="\n", file=sys.stderr)
        print("list them: PYTHONPATH=tests/tools python -m language --list FOLDER", file=sys.stderr)
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main())
