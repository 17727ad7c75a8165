"""The wire contract under its own name, for programs that speak it themselves.

`messaging_pb2`, `control_pb2` and `opaque_pb2` have the messages, `messaging_pb2_grpc` and `control_pb2_grpc`
the stubs. They are the classes that Tuplewire itself uses; docs/reference/wire.md has the rules.

Generated code imports the messages as `tuplewire.v1`. Other generators' code of the same contract, such as
grpclib's `messaging_grpc`, is found next to this package: directories `tuplewire/v1` on `sys.path` belong to
it. This package comes first.
"""

import sys
from pathlib import Path

__path__.extend(
    str(folder)
    for folder in (Path(entry, "tuplewire", "v1") for entry in sys.path)
    if folder.is_dir() and folder != Path(__file__).parent
)
