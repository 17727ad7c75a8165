from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_PROTOCOL_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_MALFORMED: _ClassVar[ErrorCode]
    ERROR_CODE_WRONG_TOPOLOGY: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_INCARNATION: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_ASSIGNMENT: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TASK: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_SEQUENCE_GAP: _ClassVar[ErrorCode]
    ERROR_CODE_CREDIT_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_DRAINING: _ClassVar[ErrorCode]
    ERROR_CODE_SUPERSEDED: _ClassVar[ErrorCode]
    ERROR_CODE_TASK_NOT_LOCAL: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_LIMIT: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_READY: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_PERMISSION_DENIED: _ClassVar[ErrorCode]
    ERROR_CODE_WRONG_WORKER: _ClassVar[ErrorCode]
    ERROR_CODE_TOO_MANY_HOPS: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_STAGED_DATA_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_EPOCH_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_RUN: _ClassVar[ErrorCode]

class AckMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK_MODE_UNSPECIFIED: _ClassVar[AckMode]
    ACK_MODE_QUEUED: _ClassVar[AckMode]
    ACK_MODE_PROCESSED: _ClassVar[AckMode]

class PeerKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PEER_KIND_UNSPECIFIED: _ClassVar[PeerKind]
    PEER_KIND_CLIENT: _ClassVar[PeerKind]
    PEER_KIND_WORKER: _ClassVar[PeerKind]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_PROTOCOL_VERSION: ErrorCode
ERROR_CODE_MALFORMED: ErrorCode
ERROR_CODE_WRONG_TOPOLOGY: ErrorCode
ERROR_CODE_STALE_INCARNATION: ErrorCode
ERROR_CODE_STALE_ASSIGNMENT: ErrorCode
ERROR_CODE_UNKNOWN_TASK: ErrorCode
ERROR_CODE_MESSAGE_TOO_LARGE: ErrorCode
ERROR_CODE_SEQUENCE_GAP: ErrorCode
ERROR_CODE_CREDIT_EXCEEDED: ErrorCode
ERROR_CODE_DRAINING: ErrorCode
ERROR_CODE_SUPERSEDED: ErrorCode
ERROR_CODE_TASK_NOT_LOCAL: ErrorCode
ERROR_CODE_RESOURCE_LIMIT: ErrorCode
ERROR_CODE_NOT_READY: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_PERMISSION_DENIED: ErrorCode
ERROR_CODE_WRONG_WORKER: ErrorCode
ERROR_CODE_TOO_MANY_HOPS: ErrorCode
ERROR_CODE_STALE_EPOCH: ErrorCode
ERROR_CODE_STAGED_DATA_LOST: ErrorCode
ERROR_CODE_EPOCH_TOO_LARGE: ErrorCode
ERROR_CODE_UNKNOWN_RUN: ErrorCode
ACK_MODE_UNSPECIFIED: AckMode
ACK_MODE_QUEUED: AckMode
ACK_MODE_PROCESSED: AckMode
PEER_KIND_UNSPECIFIED: PeerKind
PEER_KIND_CLIENT: PeerKind
PEER_KIND_WORKER: PeerKind

class Hello(_message.Message):
    __slots__ = ("protocol_version", "topology", "sender_id", "incarnation", "ack_mode", "kind", "acknowledged_sequence", "session_id", "draining", "expected_worker_id")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACK_MODE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    topology: str
    sender_id: str
    incarnation: int
    ack_mode: AckMode
    kind: PeerKind
    acknowledged_sequence: int
    session_id: int
    draining: bool
    expected_worker_id: str
    def __init__(self, protocol_version: _Optional[int] = ..., topology: _Optional[str] = ..., sender_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., ack_mode: _Optional[_Union[AckMode, str]] = ..., kind: _Optional[_Union[PeerKind, str]] = ..., acknowledged_sequence: _Optional[int] = ..., session_id: _Optional[int] = ..., draining: bool = ..., expected_worker_id: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "worker_id", "session_id", "accepted_sequence", "ack_mode", "initial_credit", "credits", "max_message_bytes", "max_request_bytes", "refusals", "assignment_version", "load", "worker_incarnation", "departures")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACK_MODE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_CREDIT_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DEPARTURES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker_id: str
    session_id: int
    accepted_sequence: int
    ack_mode: AckMode
    initial_credit: TaskCredit
    credits: _containers.RepeatedCompositeFieldContainer[TaskCredit]
    max_message_bytes: int
    max_request_bytes: int
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    assignment_version: int
    load: LoadReport
    worker_incarnation: int
    departures: _containers.RepeatedCompositeFieldContainer[Departure]
    def __init__(self, protocol_version: _Optional[int] = ..., worker_id: _Optional[str] = ..., session_id: _Optional[int] = ..., accepted_sequence: _Optional[int] = ..., ack_mode: _Optional[_Union[AckMode, str]] = ..., initial_credit: _Optional[_Union[TaskCredit, _Mapping]] = ..., credits: _Optional[_Iterable[_Union[TaskCredit, _Mapping]]] = ..., max_message_bytes: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., assignment_version: _Optional[int] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ..., worker_incarnation: _Optional[int] = ..., departures: _Optional[_Iterable[_Union[Departure, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
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
    lengths: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    first_sequence: int
    redelivered: bool
    path: int
    accepted_unix_micros: int
    retained_upstream: bool
    header_lengths: _containers.RepeatedScalarFieldContainer[int]
    header_data: bytes
    def __init__(self, task: _Optional[int] = ..., source: _Optional[int] = ..., lengths: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., first_sequence: _Optional[int] = ..., redelivered: bool = ..., path: _Optional[int] = ..., accepted_unix_micros: _Optional[int] = ..., retained_upstream: bool = ..., header_lengths: _Optional[_Iterable[int]] = ..., header_data: _Optional[bytes] = ...) -> None: ...

class MessageHeaders(_message.Message):
    __slots__ = ("key", "headers")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[MessageHeader]
    def __init__(self, key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[MessageHeader, _Mapping]]] = ...) -> None: ...

class MessageHeader(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("sequence", "groups", "assignment_version", "accepted_unix_micros", "closed_flows", "ack_immediately")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_UNIX_MICROS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FLOWS_FIELD_NUMBER: _ClassVar[int]
    ACK_IMMEDIATELY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    assignment_version: int
    accepted_unix_micros: int
    closed_flows: _containers.RepeatedCompositeFieldContainer[Flow]
    ack_immediately: bool
    def __init__(self, sequence: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., assignment_version: _Optional[int] = ..., accepted_unix_micros: _Optional[int] = ..., closed_flows: _Optional[_Iterable[_Union[Flow, _Mapping]]] = ..., ack_immediately: bool = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("task", "flow_path")
    TASK_FIELD_NUMBER: _ClassVar[int]
    FLOW_PATH_FIELD_NUMBER: _ClassVar[int]
    task: int
    flow_path: int
    def __init__(self, task: _Optional[int] = ..., flow_path: _Optional[int] = ...) -> None: ...

class TaskCredit(_message.Message):
    __slots__ = ("task", "messages", "bytes", "released_messages", "flow_path")
    TASK_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FLOW_PATH_FIELD_NUMBER: _ClassVar[int]
    task: int
    messages: int
    bytes: int
    released_messages: int
    flow_path: int
    def __init__(self, task: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., released_messages: _Optional[int] = ..., flow_path: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("frame_sequence", "task", "messages", "code", "detail", "owner_address", "flow_path")
    FRAME_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OWNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FLOW_PATH_FIELD_NUMBER: _ClassVar[int]
    frame_sequence: int
    task: int
    messages: int
    code: ErrorCode
    detail: str
    owner_address: str
    flow_path: int
    def __init__(self, frame_sequence: _Optional[int] = ..., task: _Optional[int] = ..., messages: _Optional[int] = ..., code: _Optional[_Union[ErrorCode, str]] = ..., detail: _Optional[str] = ..., owner_address: _Optional[str] = ..., flow_path: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("sequence", "credits", "refusals", "previous_sequence")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    credits: _containers.RepeatedCompositeFieldContainer[TaskCredit]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    previous_sequence: int
    def __init__(self, sequence: _Optional[int] = ..., credits: _Optional[_Iterable[_Union[TaskCredit, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., previous_sequence: _Optional[int] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("acknowledged_sequence", "changes_only")
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_ONLY_FIELD_NUMBER: _ClassVar[int]
    acknowledged_sequence: int
    changes_only: bool
    def __init__(self, acknowledged_sequence: _Optional[int] = ..., changes_only: bool = ...) -> None: ...

class TaskLoad(_message.Message):
    __slots__ = ("task", "load")
    TASK_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    task: int
    load: float
    def __init__(self, task: _Optional[int] = ..., load: _Optional[float] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskLoad]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskLoad, _Mapping]]] = ...) -> None: ...

class BackpressureStatus(_message.Message):
    __slots__ = ("worker_id", "congested_tasks", "relieved_tasks")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    CONGESTED_TASKS_FIELD_NUMBER: _ClassVar[int]
    RELIEVED_TASKS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    congested_tasks: _containers.RepeatedScalarFieldContainer[int]
    relieved_tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker_id: _Optional[str] = ..., congested_tasks: _Optional[_Iterable[int]] = ..., relieved_tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("departures",)
    DEPARTURES_FIELD_NUMBER: _ClassVar[int]
    departures: _containers.RepeatedCompositeFieldContainer[Departure]
    def __init__(self, departures: _Optional[_Iterable[_Union[Departure, _Mapping]]] = ...) -> None: ...

class Departure(_message.Message):
    __slots__ = ("incarnation", "dropped_messages", "in_flight_messages", "sink_epochs", "successors")
    class DroppedMessagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SINK_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SUCCESSORS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    dropped_messages: _containers.ScalarMap[int, int]
    in_flight_messages: int
    sink_epochs: _containers.RepeatedCompositeFieldContainer[SinkEpoch]
    successors: _containers.RepeatedCompositeFieldContainer[Successor]
    def __init__(self, incarnation: _Optional[int] = ..., dropped_messages: _Optional[_Mapping[int, int]] = ..., in_flight_messages: _Optional[int] = ..., sink_epochs: _Optional[_Iterable[_Union[SinkEpoch, _Mapping]]] = ..., successors: _Optional[_Iterable[_Union[Successor, _Mapping]]] = ...) -> None: ...

class Successor(_message.Message):
    __slots__ = ("worker_id", "address", "incarnation", "tasks", "entry_workers")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_WORKERS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    incarnation: int
    tasks: _containers.RepeatedScalarFieldContainer[int]
    entry_workers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., tasks: _Optional[_Iterable[int]] = ..., entry_workers: _Optional[_Iterable[int]] = ...) -> None: ...

class SinkEpoch(_message.Message):
    __slots__ = ("identity", "sink", "epoch", "tasks", "run", "contents")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    identity: str
    sink: str
    epoch: int
    tasks: _containers.RepeatedScalarFieldContainer[int]
    run: str
    contents: _containers.RepeatedCompositeFieldContainer[TaskContent]
    def __init__(self, identity: _Optional[str] = ..., sink: _Optional[str] = ..., epoch: _Optional[int] = ..., tasks: _Optional[_Iterable[int]] = ..., run: _Optional[str] = ..., contents: _Optional[_Iterable[_Union[TaskContent, _Mapping]]] = ...) -> None: ...

class TaskContent(_message.Message):
    __slots__ = ("messages", "bytes", "checksum")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    messages: int
    bytes: int
    checksum: int
    def __init__(self, messages: _Optional[int] = ..., bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class WatchReleases(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("hello", "frame", "goodbye", "watch_releases", "probe")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    WATCH_RELEASES_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    frame: Frame
    goodbye: Goodbye
    watch_releases: WatchReleases
    probe: Probe
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., watch_releases: _Optional[_Union[WatchReleases, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("code", "detail", "owner_address", "owner_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    OWNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    detail: str
    owner_address: str
    owner_id: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., detail: _Optional[str] = ..., owner_address: _Optional[str] = ..., owner_id: _Optional[str] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("welcome", "ack", "load", "backpressure", "drain", "ended", "departures")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    BACKPRESSURE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    DEPARTURES_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    ack: Ack
    load: LoadReport
    backpressure: BackpressureStatus
    drain: Drain
    ended: Ended
    departures: Departures
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ..., backpressure: _Optional[_Union[BackpressureStatus, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., departures: _Optional[_Union[Departures, _Mapping]] = ...) -> None: ...

class Departures(_message.Message):
    __slots__ = ("departures",)
    DEPARTURES_FIELD_NUMBER: _ClassVar[int]
    departures: _containers.RepeatedCompositeFieldContainer[Departure]
    def __init__(self, departures: _Optional[_Iterable[_Union[Departure, _Mapping]]] = ...) -> None: ...

class TaskCursor(_message.Message):
    __slots__ = ("task", "acknowledged_sequence", "received_sequence", "credit_sequence", "credit_bytes", "rejections")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    task: int
    acknowledged_sequence: int
    received_sequence: int
    credit_sequence: int
    credit_bytes: int
    rejections: _containers.RepeatedCompositeFieldContainer[Rejection]
    def __init__(self, task: _Optional[int] = ..., acknowledged_sequence: _Optional[int] = ..., received_sequence: _Optional[int] = ..., credit_sequence: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., rejections: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("number", "sequence", "after_millis", "reason", "wait")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_MILLIS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    number: int
    sequence: int
    after_millis: int
    reason: str
    wait: bool
    def __init__(self, number: _Optional[int] = ..., sequence: _Optional[int] = ..., after_millis: _Optional[int] = ..., reason: _Optional[str] = ..., wait: bool = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[RejectedTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[RejectedTask, _Mapping]]] = ...) -> None: ...

class RejectedTask(_message.Message):
    __slots__ = ("task", "rejection_number", "received_sequence")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REJECTION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    task: int
    rejection_number: int
    received_sequence: int
    def __init__(self, task: _Optional[int] = ..., rejection_number: _Optional[int] = ..., received_sequence: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("protocol_version", "topology", "consumer_id", "incarnation", "tasks", "worker_incarnation", "expected_worker_id", "subscription_id", "max_response_bytes", "follows_tasks")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_TASKS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    topology: str
    consumer_id: str
    incarnation: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskCursor]
    worker_incarnation: int
    expected_worker_id: str
    subscription_id: int
    max_response_bytes: int
    follows_tasks: bool
    def __init__(self, protocol_version: _Optional[int] = ..., topology: _Optional[str] = ..., consumer_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskCursor, _Mapping]]] = ..., worker_incarnation: _Optional[int] = ..., expected_worker_id: _Optional[str] = ..., subscription_id: _Optional[int] = ..., max_response_bytes: _Optional[int] = ..., follows_tasks: bool = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ("protocol_version", "worker_id", "worker_incarnation", "tasks")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker_id: str
    worker_incarnation: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskCursor]
    def __init__(self, protocol_version: _Optional[int] = ..., worker_id: _Optional[str] = ..., worker_incarnation: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskCursor, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskCursor]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskCursor, _Mapping]]] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class RecvRequest(_message.Message):
    __slots__ = ("subscribe", "progress", "goodbye")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscribe
    progress: Progress
    goodbye: Goodbye
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class RecvResponse(_message.Message):
    __slots__ = ("subscribed", "frame", "probe", "ended", "rejected", "moved")
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    subscribed: Subscribed
    frame: Frame
    probe: Probe
    ended: Ended
    rejected: Rejected
    moved: Moved
    def __init__(self, subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ...) -> None: ...
