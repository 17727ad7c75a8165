"""Code from proto/ for other languages: protoc and buf generate the same, and the package still works.

test_foreign_clients.py checks that this code compiles and communicates.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from deploy.foreign_clients import GRPCLIB_VENV, NODE_MODULES, built_with_maven, generate, protoc
from google.protobuf import descriptor_pb2
from helpers.tools import ROOT, missing, require_tool

from tuplewire.wire import messaging_pb2

PROTO = ROOT / "proto"
PACKAGE = ROOT / "clients"
ALONE = """
from tuplewire.v1 import control_pb2, messaging_pb2, opaque_pb2
print(messaging_pb2.Hello(sender_id="a").sender_id)
"""
STUBS = """
from tuplewire.v1 import control_pb2_grpc, messaging_pb2_grpc
assert control_pb2_grpc.ControlStub and messaging_pb2_grpc.MessagingStub
"""
BESIDE = """
import tuplewire
from tuplewire.wire import messaging_pb2 as own
from tuplewire.v1 import messaging_pb2
assert messaging_pb2.Hello is own.Hello and tuplewire.Client
"""
NODE = """
import { create, toBinary } from "@bufbuild/protobuf";
import { HelloSchema } from "./tuplewire/v1/messaging_pb.js";
const hello = create(HelloSchema, { topology: "default", senderId: "node", incarnation: 1n << 63n });
process.stdout.write(toBinary(HelloSchema, hello));
"""


def es_plugins() -> Path:
    """Return the folder with the generator for JavaScript."""
    plugins = NODE_MODULES / ".bin"
    if not (plugins / "protoc-gen-es").exists():
        missing(f"{NODE_MODULES} has no @bufbuild/protoc-gen-es; make deploy-tools installs it")
    require_tool("node", "the Debian package nodejs")
    return plugins


def mavens_protoc() -> Path:
    """Return the protoc that Maven's plug-in uses to generate Java code."""
    built_with_maven()
    (found,) = (ROOT / "build" / "foreign-java" / "protoc-plugins").glob("protoc-[0-9]*.exe")
    return found


def buf(*words: str | Path) -> None:
    """Run buf on proto/."""
    program = require_tool("buf", "make install")
    subprocess.run([program, *words], cwd=PROTO, check=True, timeout=60)


def files_of(folder: Path) -> dict[str, str]:
    """Return the generated files of a folder."""
    return {
        str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()
    }


def python(text: str, *path: Path) -> str:
    """Run a program with these folders as its path, in an environment without Tuplewire."""
    done = subprocess.run(
        [GRPCLIB_VENV / "bin" / "python", "-c", text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plug_ins_get_the_same_from_both(tmp_path: Path) -> None:
    """Buf passes the same descriptors to a generator of any language as protoc does."""
    sets = []
    ours, theirs = tmp_path / "protoc.binpb", tmp_path / "buf.binpb"
    generate(tmp_path, "--include_imports", f"--descriptor_set_out={ours}")
    buf("build", "--as-file-descriptor-set", "--exclude-source-info", "--output", theirs)
    for path in (ours, theirs):
        found = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        sets.append({each.name: each for each in found.file})
    assert sets[0].keys() == {f"tuplewire/v1/{name}.proto" for name in ("control", "messaging", "opaque")}
    assert sets[0] == sets[1]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["java", "python", "es"])
def test_buf_generates_the_same(language: str, tmp_path: Path) -> None:
    """`buf generate` and plain protoc write the same files, without additional options.

    protoc's own generators also keep the JSON names that buf passes; only plug-ins write the same.
    """
    protocs, bufs = tmp_path / "protoc", tmp_path / "buf"
    protocs.mkdir()
    program = mavens_protoc() if language == "java" else protoc()
    plugins = es_plugins() if language == "es" else tmp_path
    generate(plugins, f"--{language}_out={protocs}", by=program)
    plugin = {"protoc_builtin": language, "protoc_path": str(program)}
    if language == "es":
        plugin = {"local": str(plugins / "protoc-gen-es")}
    buf("generate", "--template", json.dumps({"version": "v2", "plugins": [{**plugin, "out": str(bufs)}]}))
    written, again = files_of(protocs), files_of(bufs)
    assert written.keys() == again.keys()
    assert len(written) >= 3
    if language == "es":
        assert written == again
    if language == "python":
        assert python(ALONE, bufs) == "a\n"
        for path in ((bufs, PACKAGE), (PACKAGE, bufs)):
            python(BESIDE, *path)


def test_javascript_reads_and_writes_the_contract(tmp_path: Path) -> None:
    """Code generated for Node can be imported and writes valid messages; 64-bit integers are exact."""
    generate(es_plugins(), f"--es_out={tmp_path}", "--es_opt=target=js")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "program.js").write_text(NODE)
    done = subprocess.run(
        [require_tool("node", "the Debian package nodejs"), "program.js"],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=True,
    )
    hello = messaging_pb2.Hello.FromString(done.stdout)
    assert (hello.topology, hello.sender_id, hello.incarnation) == ("default", "node", 1 << 63)


def test_protocs_own_python_stands_beside_the_package(tmp_path: Path) -> None:
    """Its messages and stubs work alone; before or after Tuplewire on the path, they shadow nothing."""
    generate(tmp_path, f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}")
    assert python(ALONE + STUBS, tmp_path) == "a\n"
    for path in ((tmp_path, PACKAGE), (PACKAGE, tmp_path)):
        python(ALONE + STUBS + BESIDE, *path)
