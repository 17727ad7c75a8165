"""What the image is made of: locked, the same for all, written down; and what a release would run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.tools import ROOT, missing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tuplewire

DEPLOY = ROOT / "deploy"
LOCKS = ("requirements.lock", "build-requirements.lock")
PERMISSIVE = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "PSF-2.0", "ISC", "MPL-2.0"}
"""Licences that anybody may ship beside ours."""


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes of each package of a lock."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    return {
        match[1]: (match[2], re.findall(r"--hash=sha256:[0-9a-f]{64}", block))
        for block in re.split(r"\n(?=\S)", text)
        if (match := re.match(r"([a-z0-9-]+)==([0-9][^\s;]*)", block))
    }


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_hashes_and_no_addresses(name: str) -> None:
    """Every package has a version and hashes; where it comes from is the business of pip's configuration."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert "://" not in text
    found = locked(name)
    assert len(found) == len(re.findall(r"^\S", text, re.MULTILINE))
    assert all(hashes for _, hashes in found.values())


def test_locks_fit_the_project() -> None:
    """What pyproject.toml asks for is in the locks, in a version that it allows: else run `make lock`."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    wanted = {
        "requirements.lock": [*project["dependencies"], *extras["service"], *extras["zmq"]],
        "build-requirements.lock": pyproject["build-system"]["requires"],
    }
    for name, texts in wanted.items():
        found = locked(name)
        for requirement in map(Requirement, texts):
            version, _ = found[canonicalize_name(requirement.name)]
            assert version in requirement.specifier, f"{requirement}: run make lock"


def test_the_image_takes_nothing_else() -> None:
    """Every installation in the Dockerfile asks for hashes, or for no dependencies; the base is given."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"/pip/bin/pip .*?(?:install|wheel)(.*?)(?:&&|$)", text, re.MULTILINE)
    assert len(commands) == 4
    assert all("--require-hashes" in each or "--no-deps" in each for each in commands)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}


# --- what was built -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def facts(image: Path) -> Path:
    """Return the folder that the build has written beside the image."""
    folder = image.with_name(f"{image.name}.facts")
    if not folder.is_dir():
        missing("the image's facts are not there; pip install cyclonedx-python-lib, or make deploy-check")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bill_of_materials_is_whole(facts: Path, bundle: Path) -> None:
    """It is CycloneDX, and has each Python package of the image, as locked, and each of Debian's."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (facts / "bom.cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = {each["bom-ref"]: each for each in json.loads(text)["components"]}
    (packages,) = (bundle / "rootfs" / "opt" / "tuplewire" / "lib").glob("python3*/site-packages")
    installed = {
        canonicalize_name(path.name.split("-")[0]): path.name.removesuffix(".dist-info").split("-")[1]
        for path in packages.glob("*.dist-info")
    }
    python = {each["name"]: each["version"] for ref, each in components.items() if ref.startswith("pypi:")}
    assert python == installed
    for name, (version, hashes) in locked("requirements.lock").items():
        if name in python:  # some are for another interpreter
            assert python[name] == version
            assert len(components[f"pypi:{name}"]["hashes"]) == len(hashes)
    assert {"grpcio", "protobuf", "pyzmq", "tuplewire"} <= python.keys()
    assert "deb:libc6" in components


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_licences_are_permissive(facts: Path) -> None:
    """Every Python package says its licence, and it is one of those that ask for nothing but a notice."""
    lines = (facts / "licences.md").read_text(encoding="utf-8").splitlines()[2:]
    assert len(lines) > 5
    for line in lines:
        licence = line.split("|")[3].strip()
        words = set(re.split(r"\s+(?:AND|OR)\s+", licence.replace("(", "").replace(")", "")))
        assert words <= PERMISSIVE, line


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_provenance_is_about_this_image(facts: Path, image: Path) -> None:
    """It is an in-toto statement that names the image by its digest, the commit, the base and the locks."""
    statement = json.loads((facts / "provenance.json").read_text(encoding="utf-8"))
    (manifest,) = json.loads((image / "index.json").read_text(encoding="utf-8"))["manifests"]
    assert statement["subject"][0]["digest"] == {"sha256": manifest["digest"].removeprefix("sha256:")}
    definition = statement["predicate"]["buildDefinition"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert definition["externalParameters"]["revision"] == head.stdout.strip()
    assert {each["uri"] for each in definition["resolvedDependencies"]} >= {
        f"deploy/{name}" for name in LOCKS
    }


# --- the release --------------------------------------------------------------------------------------------


def test_the_workflow_runs_the_script() -> None:
    """The pipeline may sign by its own identity and does so on tags alone; what it does is in the script."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    workflow: Any = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML's `on`
    assert workflow["permissions"]["id-token"] == "write"
    assert "deploy/release-image.sh" in workflow["jobs"]["image"]["steps"][-1]["run"]


def clone(folder: Path, base: str) -> Path:
    """Make a repository of what a release looks at, with the Dockerfile's base as named."""
    for name in ("deploy", "clients/tuplewire"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    dockerfile = folder / "deploy" / "Dockerfile"
    text = re.sub(r"^ARG BASE=.*", f"ARG BASE={base}", dockerfile.read_text(), count=1, flags=re.MULTILINE)
    dockerfile.write_text(text)
    (folder / ".gitignore").write_text("build\n")
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script there."""
    command = [str(folder / "deploy" / "release-image.sh"), *arguments]
    environment = os.environ | {"PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_release_refuses_what_cannot_be_made_again(tmp_path: Path) -> None:
    """A base by tag, a tree with changes, and a commit without the version's tag are named."""
    plain = clone(tmp_path / "plain", "docker.io/library/python:3.11-slim")
    assert "has no digest: run deploy/pin-base.sh" in release(plain, "r.example/t").stderr
    pinned = clone(tmp_path / "pinned", f"docker.io/library/python:3.11-slim@sha256:{'0' * 64}")
    assert "has no tag v" in release(pinned, "r.example/t").stderr
    (pinned / "deploy" / "Dockerfile").write_text("ARG BASE=x@sha256:y\n")
    assert "changes that are not committed" in release(pinned, "r.example/t").stderr
    assert release(pinned).returncode == 1


def test_a_release_builds_for_both_machines_and_signs(tmp_path: Path) -> None:
    """What it would run: a build for amd64 and arm64, signatures for image and chart, statements."""
    folder = clone(tmp_path / "ready", f"docker.io/library/python:3.11-slim@sha256:{'0' * 64}")
    subprocess.run(["git", "tag", f"v{tuplewire.__version__}"], cwd=folder, check=True)
    done = release(folder, "r.example/team/tuplewire", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (build,) = (line for line in lines if line.startswith("docker buildx build"))
    assert "--platform linux/amd64,linux/arm64" in build
    assert "--provenance mode=max --sbom true" in build
    assert sum(line.startswith("cosign sign --yes") for line in lines) == 2
    assert sum(line.startswith("cosign attest --yes --type cyclonedx") for line in lines) == 2
    values = yaml.safe_load((folder / "build" / "release" / "tuplewire" / "values.yaml").read_text())
    assert values["image"]["repository"] == "r.example/team/tuplewire"
