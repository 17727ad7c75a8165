"""Generated code opens and serves all message streams."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHANNEL = "clients/tuplewire/connection/grpc_channel.py", "raw_channel"
SERVER = "service/tuplewire_service/messaging/grpc/grpc_transport.py", "_raw_registrar"
SERVICES = "service/tuplewire_service/control/servicers.py", "ServiceHandlers"
"""This class calls the methods of handlers, which have the names of a channel's methods."""

PATH = re.compile(r"/?tuplewire\.v1\.(Messaging|Source)(/|$)")
"""The path of such a method, or the name of its service."""


@cache
def _product() -> dict[str, ast.Module]:
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("clients", "service", "topology", "demos")
        for path in (ROOT / folder).rglob("*.py")
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    }


def _calls(*names: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the file, the function or class, and the text of every call of these names in the product."""
    for path, module in _product().items():
        for statement in module.body:
            for node in ast.walk(statement):
                match node:
                    case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in names:
                        yield (path, getattr(statement, "name", "")), ast.unparse(node)


def test_generated_code_opens_and_serves_the_streams() -> None:
    """Only generated code opens streams, registers their services, and names the paths of their methods."""
    streams = {place for place, _ in _calls("unary_stream", "stream_unary", "stream_stream")}
    assert streams == {CHANNEL, SERVICES}
    channels = [call for _, call in _calls("raw_channel")]
    stubs = [call for _, call in _calls("MessagingStub", "SourceStub")]
    assert channels == ["raw_channel(channel)"] * 2
    unary = "SourceStub(channel)"  # polls the states of tasks, without streams
    assert {*stubs} == {"MessagingStub(raw_channel(channel))", "SourceStub(raw_channel(channel))", unary}
    assert {place for place, _ in _calls("method_handlers_generic_handler")} == {SERVER}
    added = [call for _, call in _calls("add_MessagingServicer_to_server")]
    assert added == ["add_MessagingServicer_to_server(servicer, _raw_registrar(server))"]
    constants = [
        node for module in _product().values() for node in ast.walk(module) if isinstance(node, ast.Constant)
    ]
    assert [node.value for node in constants if PATH.match(str(node.value))] == []
