from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpaqueGroup(_message.Message):
    __slots__ = ("task", "source", "lengths", "data", "first_sequence", "redelivered", "path", "accepted_unix_micros", "retained_upstream", "header_lengths", "header_data")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_UNIX_MICROS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    HEADER_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    HEADER_DATA_FIELD_NUMBER: _ClassVar[int]
    task: int
    source: int
    lengths: bytes
    data: bytes
    first_sequence: int
    redelivered: bool
    path: int
    accepted_unix_micros: int
    retained_upstream: bool
    header_lengths: bytes
    header_data: bytes
    def __init__(self, task: _Optional[int] = ..., source: _Optional[int] = ..., lengths: _Optional[bytes] = ..., data: _Optional[bytes] = ..., first_sequence: _Optional[int] = ..., redelivered: bool = ..., path: _Optional[int] = ..., accepted_unix_micros: _Optional[int] = ..., retained_upstream: bool = ..., header_lengths: _Optional[bytes] = ..., header_data: _Optional[bytes] = ...) -> None: ...

class OpaqueFrame(_message.Message):
    __slots__ = ("sequence", "groups", "assignment_version", "accepted_unix_micros", "closed_flows", "ack_immediately")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_UNIX_MICROS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FLOWS_FIELD_NUMBER: _ClassVar[int]
    ACK_IMMEDIATELY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    groups: _containers.RepeatedCompositeFieldContainer[OpaqueGroup]
    assignment_version: int
    accepted_unix_micros: int
    closed_flows: _containers.RepeatedCompositeFieldContainer[OpaqueFlow]
    ack_immediately: bool
    def __init__(self, sequence: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[OpaqueGroup, _Mapping]]] = ..., assignment_version: _Optional[int] = ..., accepted_unix_micros: _Optional[int] = ..., closed_flows: _Optional[_Iterable[_Union[OpaqueFlow, _Mapping]]] = ..., ack_immediately: bool = ...) -> None: ...

class OpaqueMessage(_message.Message):
    __slots__ = ("frame",)
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: OpaqueFrame
    def __init__(self, frame: _Optional[_Union[OpaqueFrame, _Mapping]] = ...) -> None: ...

class OpaqueFlow(_message.Message):
    __slots__ = ("task", "flow_path")
    TASK_FIELD_NUMBER: _ClassVar[int]
    FLOW_PATH_FIELD_NUMBER: _ClassVar[int]
    task: int
    flow_path: int
    def __init__(self, task: _Optional[int] = ..., flow_path: _Optional[int] = ...) -> None: ...
