"""Writes what an image is made of: a bill of materials (CycloneDX), its licences, and its provenance (SLSA).

    deploy/image_facts.py ROOT --layout OCI --base BASE --revision COMMIT --out DIRECTORY

ROOT is where the image's files are; OCI is its layout. The provenance names its digest. The
output is the same for the same image, because it contains no time and no random number.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

HERE = Path(__file__).parent
LOCKS = (HERE / "requirements.lock", HERE / "build-requirements.lock")
_UNKNOWN = "see the package"
_SPDX = {
    "MIT License": "MIT",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
}
"""The SPDX names of licences that packages name differently."""


def python_packages(root: Path) -> Iterator[Component]:
    """Yield the packages installed for Python below /opt/tuplewire, with the hashes that the lock allows."""
    hashes = locked()
    folders = [str(path) for path in root.glob("opt/tuplewire/lib/python3*/site-packages")]
    for found in sorted(importlib.metadata.distributions(path=folders), key=lambda each: each.name.lower()):
        name = re.sub(r"[-_.]+", "-", found.name).lower()
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=found.version,
            bom_ref=f"pypi:{name}",
            purl=PackageURL("pypi", None, name, found.version),
            licenses=[LicenseFactory().make_from_string(_licence(found))],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes.get(name, ())],
        )


def _licence(found: importlib.metadata.Distribution) -> str:
    metadata: Any = found.metadata
    expression = metadata["License-Expression"]
    if expression:
        return str(expression)
    classified = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or ()
        if text.startswith("License :: ")
    ]
    text = " AND ".join(classified) or metadata["License"] or _UNKNOWN
    return _SPDX.get(text, text)


def debian_packages(root: Path) -> Iterator[Component]:
    """Yield the packages that Debian's package manager lists; none if the image has no such list."""
    texts = [
        path
        for path in (root / "var/lib/dpkg/status", *root.glob("var/lib/dpkg/status.d/*"))
        if path.is_file()
    ]
    for text in "\n\n".join(path.read_text(encoding="utf-8") for path in texts).split("\n\n"):
        fields = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", text, re.MULTILINE))
        if not fields.get("Status", "install ok installed").endswith(" installed") or "Package" not in fields:
            continue
        name, version = fields["Package"], fields["Version"]
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            bom_ref=f"deb:{name}",
            purl=PackageURL("deb", "debian", name, version, {"arch": fields["Architecture"]}),
        )


def interpreter(root: Path) -> Iterator[Component]:
    """Yield the Python that was built into the base. A Python from Debian is one of its packages."""
    for header in root.glob("usr/local/include/python3*/patchlevel.h"):
        (version,) = re.findall(r'^#define PY_VERSION +"([^"+]+)', header.read_text("utf-8"), re.MULTILINE)
        yield Component(
            type=ComponentType.PLATFORM,
            name="python",
            version=version,
            bom_ref="python",
            purl=PackageURL("generic", None, "python", version),
            licenses=[LicenseFactory().make_from_string("PSF-2.0")],
        )


def locked() -> dict[str, list[str]]:
    """Return the hashes of each package in the locks, by its name."""
    hashes: dict[str, list[str]] = {}
    for lock in LOCKS:
        for block in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
            if match := re.match(r"([a-z0-9-]+)==", block):
                hashes[match[1]] = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
    return hashes


def bill_of_materials(root: Path, version: str) -> str:
    """Return the CycloneDX document of the image, in JSON."""
    bom = Bom(components=[*interpreter(root), *python_packages(root), *debian_packages(root)])
    bom.metadata.component = Component(
        type=ComponentType.CONTAINER, name="tuplewire", version=version, bom_ref="image"
    )
    bom.register_dependency(bom.metadata.component, bom.components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["serialNumber"], document["metadata"]["timestamp"]
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def licences(root: Path) -> str:
    """Return a table of the licences of Python and its packages, and one of Debian's packages."""
    own = ["| package | version | licence |", "|---|---|---|"]
    for each in (*interpreter(root), *python_packages(root)):
        (licence,) = each.licenses
        text = getattr(licence, "value", None) or getattr(licence, "id", None) or getattr(licence, "name", "")
        own.append(f"| {each.name} | {each.version} | {text} |")
    debian = ["| package of Debian | version | licences of its parts |", "|---|---|---|"]
    debian += [
        f"| {each.name} | {each.version} | {_debian_licences(root, each.name)} |"
        for each in debian_packages(root)
    ]
    return "\n".join([*own, "", *debian]) + "\n"


def _debian_licences(root: Path, package: str) -> str:
    """Return the licences in a package's copyright file, by its own names for them."""
    file = root / "usr/share/doc" / package / "copyright"
    if not file.is_file():
        return _UNKNOWN
    text = file.read_text(encoding="utf-8", errors="replace")
    named = re.findall(r"^License: *(\S.*?) *$", text, re.MULTILINE)
    named = named or re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", text)
    return ", ".join(sorted(set(named))) or f"see /usr/share/doc/{package}/copyright"


def provenance(layout: Path, base: str, revision: str) -> dict[str, Any]:
    """Return the in-toto statement about the image: of which source, base and locks it was made."""
    (manifest,) = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    materials: list[dict[str, Any]] = [
        {"uri": "git+local", "digest": {"gitCommit": revision}},
        {"uri": base, "digest": dict(re.findall(r"@(sha256):([0-9a-f]{64})$", base))},
    ]
    for lock in LOCKS:
        digest = hashlib.sha256(lock.read_bytes()).hexdigest()
        materials.append({"uri": f"deploy/{lock.name}", "digest": {"sha256": digest}})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "tuplewire", "digest": {"sha256": manifest["digest"].partition(":")[2]}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "deploy/build-image.sh",
                "externalParameters": {"base": base, "revision": revision},
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": "deploy/build-image.sh"}},
        },
    }


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path)
    for name in ("layout", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("base", "revision", "version"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = provenance(arguments.layout, arguments.base, arguments.revision)
    for name, text in {
        "bom.cdx.json": bill_of_materials(arguments.root, arguments.version),
        "licences.md": licences(arguments.root),
        "provenance.json": json.dumps(facts, indent=1) + "\n",
    }.items():
        (arguments.out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
