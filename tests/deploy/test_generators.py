"""Code from proto/ for other languages: protoc and buf give generators the same, and the package works."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from deploy.foreign_clients import GRPCLIB_VENV, NODE_MODULES, generate
from google.protobuf import descriptor_pb2
from helpers.tools import ROOT, missing, ran, require_tool

from tuplewire.wire import messaging_pb2

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


def python(text: str, *path: Path) -> str:
    """Run a program with these folders as its path, in an environment without Tuplewire."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = ran(GRPCLIB_VENV / "bin" / "python", "-c", text, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plug_ins_get_the_same_from_both(tmp_path: Path) -> None:
    """Buf passes the same descriptors to a generator of any language as protoc does."""
    sets = []
    ours, theirs = tmp_path / "protoc.binpb", tmp_path / "buf.binpb"
    generate(tmp_path, "--include_imports", f"--descriptor_set_out={ours}")
    buf = [require_tool("buf", "make install"), "build", "--as-file-descriptor-set", "--exclude-source-info"]
    subprocess.run([*buf, "--output", theirs], cwd=ROOT / "proto", check=True, timeout=240)
    for path in (ours, theirs):
        found = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
        sets.append({each.name: each for each in found.file})
    assert sets[0].keys() == {f"tuplewire/v1/{name}.proto" for name in ("control", "messaging", "opaque")}
    assert sets[0] == sets[1]


def test_javascript_reads_and_writes_the_contract(tmp_path: Path) -> None:
    """Code generated for Node can be imported and writes valid messages; 64-bit integers are exact."""
    plugins = NODE_MODULES / ".bin"
    if not (plugins / "protoc-gen-es").exists():
        missing(f"{NODE_MODULES} has no @bufbuild/protoc-gen-es; make deploy-tools installs it")
    generate(plugins, f"--es_out={tmp_path}", "--es_opt=target=js")
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "program.js").write_text(NODE)
    done = subprocess.run(
        [require_tool("node", "the Debian package nodejs"), "program.js"],
        cwd=tmp_path,
        capture_output=True,
        timeout=240,
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
