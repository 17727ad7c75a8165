from tuplewire.wire import messaging_pb2 as _messaging_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_STARTING: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_STOPPED: _ClassVar[WorkerState]

class MetricKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    METRIC_KIND_UNSPECIFIED: _ClassVar[MetricKind]
    METRIC_KIND_COUNTER: _ClassVar[MetricKind]
    METRIC_KIND_GAUGE: _ClassVar[MetricKind]
    METRIC_KIND_HISTOGRAM: _ClassVar[MetricKind]
    METRIC_KIND_SUMMARY: _ClassVar[MetricKind]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_STARTING: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_STOPPED: WorkerState
METRIC_KIND_UNSPECIFIED: MetricKind
METRIC_KIND_COUNTER: MetricKind
METRIC_KIND_GAUGE: MetricKind
METRIC_KIND_HISTOGRAM: MetricKind
METRIC_KIND_SUMMARY: MetricKind

class Ledger(_message.Message):
    __slots__ = ("accepted", "acknowledged", "dropped", "pending")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    acknowledged: int
    dropped: _containers.ScalarMap[str, int]
    pending: int
    def __init__(self, accepted: _Optional[int] = ..., acknowledged: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., pending: _Optional[int] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("address", "connected", "ledger", "reconnects", "congested_tasks", "worker_id", "connection_number", "sent_messages", "sent_frames", "sent_bytes")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    RECONNECTS_FIELD_NUMBER: _ClassVar[int]
    CONGESTED_TASKS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SENT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SENT_FRAMES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    address: str
    connected: bool
    ledger: Ledger
    reconnects: int
    congested_tasks: _containers.RepeatedScalarFieldContainer[int]
    worker_id: str
    connection_number: int
    sent_messages: int
    sent_frames: int
    sent_bytes: int
    def __init__(self, address: _Optional[str] = ..., connected: bool = ..., ledger: _Optional[_Union[Ledger, _Mapping]] = ..., reconnects: _Optional[int] = ..., congested_tasks: _Optional[_Iterable[int]] = ..., worker_id: _Optional[str] = ..., connection_number: _Optional[int] = ..., sent_messages: _Optional[int] = ..., sent_frames: _Optional[int] = ..., sent_bytes: _Optional[int] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("task", "queued_messages", "queued_bytes", "subscribed", "acknowledged_messages", "congested", "base_sequence", "oldest_seconds", "load", "received_messages")
    TASK_FIELD_NUMBER: _ClassVar[int]
    QUEUED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONGESTED_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    task: int
    queued_messages: int
    queued_bytes: int
    subscribed: bool
    acknowledged_messages: int
    congested: bool
    base_sequence: int
    oldest_seconds: float
    load: float
    received_messages: int
    def __init__(self, task: _Optional[int] = ..., queued_messages: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., subscribed: bool = ..., acknowledged_messages: _Optional[int] = ..., congested: bool = ..., base_sequence: _Optional[int] = ..., oldest_seconds: _Optional[float] = ..., load: _Optional[float] = ..., received_messages: _Optional[int] = ...) -> None: ...

class SessionStatus(_message.Message):
    __slots__ = ("sender_id", "identity", "worker_id", "address", "connected", "state_age_seconds", "sent_messages", "sent_bytes", "window_messages", "outstanding_messages", "outstanding_bytes", "blocking_task_count")
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    STATE_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    identity: str
    worker_id: str
    address: str
    connected: bool
    state_age_seconds: float
    sent_messages: int
    sent_bytes: int
    window_messages: int
    outstanding_messages: int
    outstanding_bytes: int
    blocking_task_count: int
    def __init__(self, sender_id: _Optional[str] = ..., identity: _Optional[str] = ..., worker_id: _Optional[str] = ..., address: _Optional[str] = ..., connected: bool = ..., state_age_seconds: _Optional[float] = ..., sent_messages: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., window_messages: _Optional[int] = ..., outstanding_messages: _Optional[int] = ..., outstanding_bytes: _Optional[int] = ..., blocking_task_count: _Optional[int] = ...) -> None: ...

class ConsumerStatus(_message.Message):
    __slots__ = ("consumer_id", "identity", "address", "subscribed_seconds", "tasks", "outstanding_messages", "task_count")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    consumer_id: str
    identity: str
    address: str
    subscribed_seconds: float
    tasks: _containers.RepeatedScalarFieldContainer[int]
    outstanding_messages: int
    task_count: int
    def __init__(self, consumer_id: _Optional[str] = ..., identity: _Optional[str] = ..., address: _Optional[str] = ..., subscribed_seconds: _Optional[float] = ..., tasks: _Optional[_Iterable[int]] = ..., outstanding_messages: _Optional[int] = ..., task_count: _Optional[int] = ...) -> None: ...

class IdentitySessions(_message.Message):
    __slots__ = ("sharing", "resumable")
    SHARING_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    sharing: int
    resumable: int
    def __init__(self, sharing: _Optional[int] = ..., resumable: _Optional[int] = ...) -> None: ...

class ReceiveCount(_message.Message):
    __slots__ = ("source", "messages", "frames", "bytes")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    source: str
    messages: int
    frames: int
    bytes: int
    def __init__(self, source: _Optional[str] = ..., messages: _Optional[int] = ..., frames: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Blocking(_message.Message):
    __slots__ = ("task", "place", "seconds", "recent_seconds")
    TASK_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    task: str
    place: str
    seconds: float
    recent_seconds: float
    def __init__(self, task: _Optional[str] = ..., place: _Optional[str] = ..., seconds: _Optional[float] = ..., recent_seconds: _Optional[float] = ...) -> None: ...

class RecentCounts(_message.Message):
    __slots__ = ("interval_seconds", "accepted", "acknowledged", "dropped", "state_seconds")
    class StateSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    STATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    accepted: int
    acknowledged: int
    dropped: int
    state_seconds: _containers.ScalarMap[str, float]
    def __init__(self, interval_seconds: _Optional[float] = ..., accepted: _Optional[int] = ..., acknowledged: _Optional[int] = ..., dropped: _Optional[int] = ..., state_seconds: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Latency(_message.Message):
    __slots__ = ("bound_seconds", "counts", "sum_seconds", "exemplars")
    class ExemplarsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Exemplar
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Exemplar, _Mapping]] = ...) -> None: ...
    BOUND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXEMPLARS_FIELD_NUMBER: _ClassVar[int]
    bound_seconds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum_seconds: float
    exemplars: _containers.MessageMap[int, Exemplar]
    def __init__(self, bound_seconds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum_seconds: _Optional[float] = ..., exemplars: _Optional[_Mapping[int, Exemplar]] = ...) -> None: ...

class Exemplar(_message.Message):
    __slots__ = ("trace_id", "span_id", "duration_seconds", "unix_seconds")
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    span_id: str
    duration_seconds: float
    unix_seconds: float
    def __init__(self, trace_id: _Optional[str] = ..., span_id: _Optional[str] = ..., duration_seconds: _Optional[float] = ..., unix_seconds: _Optional[float] = ...) -> None: ...

class SinkStatus(_message.Message):
    __slots__ = ("memory_bytes", "disk_bytes", "waiting_messages", "waits")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    disk_bytes: int
    waiting_messages: int
    waits: int
    def __init__(self, memory_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., waiting_messages: _Optional[int] = ..., waits: _Optional[int] = ...) -> None: ...

class TapStatus(_message.Message):
    __slots__ = ("open_taps", "shown_messages", "omitted_messages")
    OPEN_TAPS_FIELD_NUMBER: _ClassVar[int]
    SHOWN_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OMITTED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    open_taps: int
    shown_messages: int
    omitted_messages: int
    def __init__(self, open_taps: _Optional[int] = ..., shown_messages: _Optional[int] = ..., omitted_messages: _Optional[int] = ...) -> None: ...

class ComponentStatus(_message.Message):
    __slots__ = ("component", "kind", "first_task", "task_count", "inputs", "executors")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIRST_TASK_FIELD_NUMBER: _ClassVar[int]
    TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    component: str
    kind: str
    first_task: int
    task_count: int
    inputs: _containers.RepeatedCompositeFieldContainer[InputStatus]
    executors: _containers.RepeatedCompositeFieldContainer[ExecutorStatus]
    def __init__(self, component: _Optional[str] = ..., kind: _Optional[str] = ..., first_task: _Optional[int] = ..., task_count: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[InputStatus, _Mapping]]] = ..., executors: _Optional[_Iterable[_Union[ExecutorStatus, _Mapping]]] = ...) -> None: ...

class InputStatus(_message.Message):
    __slots__ = ("component", "stream", "grouping", "executed")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUPING_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    component: str
    stream: str
    grouping: str
    executed: int
    def __init__(self, component: _Optional[str] = ..., stream: _Optional[str] = ..., grouping: _Optional[str] = ..., executed: _Optional[int] = ...) -> None: ...

class ExecutorStatus(_message.Message):
    __slots__ = ("first_task", "task_count", "emitted", "executed", "failed", "errors", "busy_seconds", "sending_seconds", "queued_tuples", "queue_capacity", "pending_tuples")
    FIRST_TASK_FIELD_NUMBER: _ClassVar[int]
    TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENDING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TUPLES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    PENDING_TUPLES_FIELD_NUMBER: _ClassVar[int]
    first_task: int
    task_count: int
    emitted: int
    executed: int
    failed: int
    errors: int
    busy_seconds: float
    sending_seconds: float
    queued_tuples: int
    queue_capacity: int
    pending_tuples: int
    def __init__(self, first_task: _Optional[int] = ..., task_count: _Optional[int] = ..., emitted: _Optional[int] = ..., executed: _Optional[int] = ..., failed: _Optional[int] = ..., errors: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., sending_seconds: _Optional[float] = ..., queued_tuples: _Optional[int] = ..., queue_capacity: _Optional[int] = ..., pending_tuples: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("max_clients", "max_tasks", "tasks", "membership_poll_seconds")
    MAX_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_POLL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    max_clients: int
    max_tasks: int
    tasks: _containers.RepeatedScalarFieldContainer[int]
    membership_poll_seconds: float
    def __init__(self, max_clients: _Optional[int] = ..., max_tasks: _Optional[int] = ..., tasks: _Optional[_Iterable[int]] = ..., membership_poll_seconds: _Optional[float] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("worker_id", "incarnation", "topology", "version", "state", "assignment_version", "ledger", "peers", "tasks", "received", "addresses", "moving_task_count", "peer_addresses", "state_seconds", "blocking", "newest_assignment_version", "not_ready_reason", "sessions", "consumers", "connected_session_count", "disconnected_session_count", "subscribed_consumer_count", "smallest_window_messages", "refused_streams", "refused_messages", "redelivered_messages", "resident_bytes", "recent", "queue_wait", "end_to_end", "components", "rejections", "rejected_waiting_messages", "dead_letter_task", "local_task_count", "sharing_session_count", "resumable_session_count", "identities", "silent_streams", "grpc_server_restarts", "possibly_lost_messages", "predecessor_possibly_lost_messages", "send_to_ack", "loop_lag", "sinks", "taps", "assignment_refused", "drain_seconds", "spouts_inactive")
    class StateSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class RefusedStreamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RefusedMessagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class IdentitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: IdentitySessions
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[IdentitySessions, _Mapping]] = ...) -> None: ...
    class PossiblyLostMessagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    MOVING_TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    STATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_FIELD_NUMBER: _ClassVar[int]
    NEWEST_ASSIGNMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASON_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    DISCONNECTED_SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_CONSUMER_COUNT_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_WINDOW_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_STREAMS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    END_TO_END_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_WAITING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TASK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARING_SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_SESSION_COUNT_FIELD_NUMBER: _ClassVar[int]
    IDENTITIES_FIELD_NUMBER: _ClassVar[int]
    SILENT_STREAMS_FIELD_NUMBER: _ClassVar[int]
    GRPC_SERVER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    POSSIBLY_LOST_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_POSSIBLY_LOST_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SEND_TO_ACK_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_REFUSED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPOUTS_INACTIVE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    topology: str
    version: str
    state: WorkerState
    assignment_version: int
    ledger: Ledger
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStatus]
    received: _containers.RepeatedCompositeFieldContainer[ReceiveCount]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    moving_task_count: int
    peer_addresses: _containers.RepeatedScalarFieldContainer[str]
    state_seconds: _containers.ScalarMap[str, float]
    blocking: _containers.RepeatedCompositeFieldContainer[Blocking]
    newest_assignment_version: int
    not_ready_reason: str
    sessions: _containers.RepeatedCompositeFieldContainer[SessionStatus]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerStatus]
    connected_session_count: int
    disconnected_session_count: int
    subscribed_consumer_count: int
    smallest_window_messages: int
    refused_streams: _containers.ScalarMap[str, int]
    refused_messages: _containers.ScalarMap[str, int]
    redelivered_messages: int
    resident_bytes: int
    recent: RecentCounts
    queue_wait: Latency
    end_to_end: Latency
    components: _containers.RepeatedCompositeFieldContainer[ComponentStatus]
    rejections: int
    rejected_waiting_messages: int
    dead_letter_task: int
    local_task_count: int
    sharing_session_count: int
    resumable_session_count: int
    identities: _containers.MessageMap[str, IdentitySessions]
    silent_streams: int
    grpc_server_restarts: int
    possibly_lost_messages: _containers.ScalarMap[str, int]
    predecessor_possibly_lost_messages: int
    send_to_ack: Latency
    loop_lag: Latency
    sinks: SinkStatus
    taps: TapStatus
    assignment_refused: bool
    drain_seconds: float
    spouts_inactive: bool
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., topology: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., assignment_version: _Optional[int] = ..., ledger: _Optional[_Union[Ledger, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[TaskStatus, _Mapping]]] = ..., received: _Optional[_Iterable[_Union[ReceiveCount, _Mapping]]] = ..., addresses: _Optional[_Iterable[str]] = ..., moving_task_count: _Optional[int] = ..., peer_addresses: _Optional[_Iterable[str]] = ..., state_seconds: _Optional[_Mapping[str, float]] = ..., blocking: _Optional[_Iterable[_Union[Blocking, _Mapping]]] = ..., newest_assignment_version: _Optional[int] = ..., not_ready_reason: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[SessionStatus, _Mapping]]] = ..., consumers: _Optional[_Iterable[_Union[ConsumerStatus, _Mapping]]] = ..., connected_session_count: _Optional[int] = ..., disconnected_session_count: _Optional[int] = ..., subscribed_consumer_count: _Optional[int] = ..., smallest_window_messages: _Optional[int] = ..., refused_streams: _Optional[_Mapping[str, int]] = ..., refused_messages: _Optional[_Mapping[str, int]] = ..., redelivered_messages: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., recent: _Optional[_Union[RecentCounts, _Mapping]] = ..., queue_wait: _Optional[_Union[Latency, _Mapping]] = ..., end_to_end: _Optional[_Union[Latency, _Mapping]] = ..., components: _Optional[_Iterable[_Union[ComponentStatus, _Mapping]]] = ..., rejections: _Optional[int] = ..., rejected_waiting_messages: _Optional[int] = ..., dead_letter_task: _Optional[int] = ..., local_task_count: _Optional[int] = ..., sharing_session_count: _Optional[int] = ..., resumable_session_count: _Optional[int] = ..., identities: _Optional[_Mapping[str, IdentitySessions]] = ..., silent_streams: _Optional[int] = ..., grpc_server_restarts: _Optional[int] = ..., possibly_lost_messages: _Optional[_Mapping[str, int]] = ..., predecessor_possibly_lost_messages: _Optional[int] = ..., send_to_ack: _Optional[_Union[Latency, _Mapping]] = ..., loop_lag: _Optional[_Union[Latency, _Mapping]] = ..., sinks: _Optional[_Union[SinkStatus, _Mapping]] = ..., taps: _Optional[_Union[TapStatus, _Mapping]] = ..., assignment_refused: bool = ..., drain_seconds: _Optional[float] = ..., spouts_inactive: bool = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("loads",)
    class LoadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    LOADS_FIELD_NUMBER: _ClassVar[int]
    loads: _containers.ScalarMap[int, float]
    def __init__(self, loads: _Optional[_Mapping[int, float]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("version", "topology", "workers", "inactive")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    INACTIVE_FIELD_NUMBER: _ClassVar[int]
    version: int
    topology: str
    workers: _containers.RepeatedCompositeFieldContainer[AssignedWorker]
    inactive: bool
    def __init__(self, version: _Optional[int] = ..., topology: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[AssignedWorker, _Mapping]]] = ..., inactive: bool = ...) -> None: ...

class AssignedWorker(_message.Message):
    __slots__ = ("worker_id", "address", "tasks", "node", "peer_address")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    tasks: _containers.RepeatedScalarFieldContainer[int]
    node: str
    peer_address: str
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., tasks: _Optional[_Iterable[int]] = ..., node: _Optional[str] = ..., peer_address: _Optional[str] = ...) -> None: ...

class PolledTask(_message.Message):
    __slots__ = ("task", "seen_sequence", "entries_to_sequence")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SEEN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_TO_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    task: int
    seen_sequence: int
    entries_to_sequence: int
    def __init__(self, task: _Optional[int] = ..., seen_sequence: _Optional[int] = ..., entries_to_sequence: _Optional[int] = ...) -> None: ...

class PollRequest(_message.Message):
    __slots__ = ("topology", "expected_worker_id", "tasks", "worker_incarnations", "wait_millis")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    topology: str
    expected_worker_id: str
    tasks: _containers.RepeatedCompositeFieldContainer[PolledTask]
    worker_incarnations: _containers.RepeatedScalarFieldContainer[int]
    wait_millis: int
    def __init__(self, topology: _Optional[str] = ..., expected_worker_id: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[PolledTask, _Mapping]]] = ..., worker_incarnations: _Optional[_Iterable[int]] = ..., wait_millis: _Optional[int] = ...) -> None: ...

class HeldTask(_message.Message):
    __slots__ = ("task", "acknowledged_sequence", "last_sequence", "queued_bytes", "congested", "base_sequence", "consumer_id", "entries")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONGESTED_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    task: int
    acknowledged_sequence: int
    last_sequence: int
    queued_bytes: int
    congested: bool
    base_sequence: int
    consumer_id: str
    entries: TaskEntries
    def __init__(self, task: _Optional[int] = ..., acknowledged_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., congested: bool = ..., base_sequence: _Optional[int] = ..., consumer_id: _Optional[str] = ..., entries: _Optional[_Union[TaskEntries, _Mapping]] = ...) -> None: ...

class TaskEntries(_message.Message):
    __slots__ = ("first_sequence", "run_lengths", "entry_workers", "entry_sequences")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RUN_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    run_lengths: _containers.RepeatedScalarFieldContainer[int]
    entry_workers: _containers.RepeatedScalarFieldContainer[int]
    entry_sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_sequence: _Optional[int] = ..., run_lengths: _Optional[_Iterable[int]] = ..., entry_workers: _Optional[_Iterable[int]] = ..., entry_sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class DepartedWorker(_message.Message):
    __slots__ = ("incarnation", "dropped_messages")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    dropped_messages: int
    def __init__(self, incarnation: _Optional[int] = ..., dropped_messages: _Optional[int] = ...) -> None: ...

class PollResponse(_message.Message):
    __slots__ = ("worker_incarnation", "assignment_version", "tasks", "leaving_tasks", "departed_workers")
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_TASKS_FIELD_NUMBER: _ClassVar[int]
    DEPARTED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    worker_incarnation: int
    assignment_version: int
    tasks: _containers.RepeatedCompositeFieldContainer[HeldTask]
    leaving_tasks: _containers.RepeatedScalarFieldContainer[int]
    departed_workers: _containers.RepeatedCompositeFieldContainer[DepartedWorker]
    def __init__(self, worker_incarnation: _Optional[int] = ..., assignment_version: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[HeldTask, _Mapping]]] = ..., leaving_tasks: _Optional[_Iterable[int]] = ..., departed_workers: _Optional[_Iterable[_Union[DepartedWorker, _Mapping]]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("topology", "expected_worker_id", "worker_incarnation", "task", "after_sequence", "last_sequence")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topology: str
    expected_worker_id: str
    worker_incarnation: int
    task: int
    after_sequence: int
    last_sequence: int
    def __init__(self, topology: _Optional[str] = ..., expected_worker_id: _Optional[str] = ..., worker_incarnation: _Optional[int] = ..., task: _Optional[int] = ..., after_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("frame",)
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: _messaging_pb2.Frame
    def __init__(self, frame: _Optional[_Union[_messaging_pb2.Frame, _Mapping]] = ...) -> None: ...

class AcknowledgedTask(_message.Message):
    __slots__ = ("task", "sequence")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    task: int
    sequence: int
    def __init__(self, task: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("topology", "expected_worker_id", "worker_incarnation", "tasks")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    topology: str
    expected_worker_id: str
    worker_incarnation: int
    tasks: _containers.RepeatedCompositeFieldContainer[AcknowledgedTask]
    def __init__(self, topology: _Optional[str] = ..., expected_worker_id: _Optional[str] = ..., worker_incarnation: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[AcknowledgedTask, _Mapping]]] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetAssignmentRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetAssignmentResponse(_message.Message):
    __slots__ = ("assignment", "max_message_bytes", "worker_id")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    max_message_bytes: int
    worker_id: str
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., max_message_bytes: _Optional[int] = ..., worker_id: _Optional[str] = ...) -> None: ...

class UpdateAssignmentRequest(_message.Message):
    __slots__ = ("assignment", "force")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    force: bool
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., force: bool = ...) -> None: ...

class UpdateAssignmentResponse(_message.Message):
    __slots__ = ("version", "changed")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    version: int
    changed: bool
    def __init__(self, version: _Optional[int] = ..., changed: bool = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("drain_millis", "wait")
    DRAIN_MILLIS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    drain_millis: int
    wait: bool
    def __init__(self, drain_millis: _Optional[int] = ..., wait: bool = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("started", "dropped_messages")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    started: bool
    dropped_messages: int
    def __init__(self, started: bool = ..., dropped_messages: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("topology", "sink", "epoch", "partition", "attempt", "piece", "frame", "expected_worker_id")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    topology: str
    sink: str
    epoch: int
    partition: int
    attempt: str
    piece: int
    frame: bytes
    expected_worker_id: str
    def __init__(self, topology: _Optional[str] = ..., sink: _Optional[str] = ..., epoch: _Optional[int] = ..., partition: _Optional[int] = ..., attempt: _Optional[str] = ..., piece: _Optional[int] = ..., frame: _Optional[bytes] = ..., expected_worker_id: _Optional[str] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("accepted", "waits_for")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    waits_for: str
    def __init__(self, accepted: bool = ..., waits_for: _Optional[str] = ...) -> None: ...

class StagedAttempt(_message.Message):
    __slots__ = ("partition", "attempt", "messages", "piece_count")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PIECE_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    attempt: str
    messages: int
    piece_count: int
    def __init__(self, partition: _Optional[int] = ..., attempt: _Optional[str] = ..., messages: _Optional[int] = ..., piece_count: _Optional[int] = ...) -> None: ...

class DiscardRequest(_message.Message):
    __slots__ = ("topology", "sink", "epoch", "expected_worker_id", "attempt")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    topology: str
    sink: str
    epoch: int
    expected_worker_id: str
    attempt: str
    def __init__(self, topology: _Optional[str] = ..., sink: _Optional[str] = ..., epoch: _Optional[int] = ..., expected_worker_id: _Optional[str] = ..., attempt: _Optional[str] = ...) -> None: ...

class DiscardResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("topology", "sink", "epoch", "expected_worker_id", "attempts", "published_tasks", "published_contents")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_TASKS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_CONTENTS_FIELD_NUMBER: _ClassVar[int]
    topology: str
    sink: str
    epoch: int
    expected_worker_id: str
    attempts: _containers.RepeatedCompositeFieldContainer[StagedAttempt]
    published_tasks: _containers.RepeatedScalarFieldContainer[int]
    published_contents: _containers.RepeatedCompositeFieldContainer[_messaging_pb2.TaskContent]
    def __init__(self, topology: _Optional[str] = ..., sink: _Optional[str] = ..., epoch: _Optional[int] = ..., expected_worker_id: _Optional[str] = ..., attempts: _Optional[_Iterable[_Union[StagedAttempt, _Mapping]]] = ..., published_tasks: _Optional[_Iterable[int]] = ..., published_contents: _Optional[_Iterable[_Union[_messaging_pb2.TaskContent, _Mapping]]] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("topology", "sink", "epoch", "expected_worker_id", "attempts", "run", "published_tasks", "published_contents")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_TASKS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_CONTENTS_FIELD_NUMBER: _ClassVar[int]
    topology: str
    sink: str
    epoch: int
    expected_worker_id: str
    attempts: _containers.RepeatedCompositeFieldContainer[StagedAttempt]
    run: str
    published_tasks: _containers.RepeatedScalarFieldContainer[int]
    published_contents: _containers.RepeatedCompositeFieldContainer[_messaging_pb2.TaskContent]
    def __init__(self, topology: _Optional[str] = ..., sink: _Optional[str] = ..., epoch: _Optional[int] = ..., expected_worker_id: _Optional[str] = ..., attempts: _Optional[_Iterable[_Union[StagedAttempt, _Mapping]]] = ..., run: _Optional[str] = ..., published_tasks: _Optional[_Iterable[int]] = ..., published_contents: _Optional[_Iterable[_Union[_messaging_pb2.TaskContent, _Mapping]]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("chosen_messages", "waiting_messages")
    CHOSEN_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAITING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    chosen_messages: int
    waiting_messages: int
    def __init__(self, chosen_messages: _Optional[int] = ..., waiting_messages: _Optional[int] = ...) -> None: ...

class GetProgressRequest(_message.Message):
    __slots__ = ("topology", "sink", "epoch", "expected_worker_id")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    topology: str
    sink: str
    epoch: int
    expected_worker_id: str
    def __init__(self, topology: _Optional[str] = ..., sink: _Optional[str] = ..., epoch: _Optional[int] = ..., expected_worker_id: _Optional[str] = ...) -> None: ...

class GetProgressResponse(_message.Message):
    __slots__ = ("waiting_messages", "waiting_tasks")
    WAITING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAITING_TASKS_FIELD_NUMBER: _ClassVar[int]
    waiting_messages: int
    waiting_tasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, waiting_messages: _Optional[int] = ..., waiting_tasks: _Optional[_Iterable[int]] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ("topology", "sink", "epoch", "expected_worker_id", "run", "attempts")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    topology: str
    sink: str
    epoch: int
    expected_worker_id: str
    run: str
    attempts: _containers.RepeatedCompositeFieldContainer[StagedAttempt]
    def __init__(self, topology: _Optional[str] = ..., sink: _Optional[str] = ..., epoch: _Optional[int] = ..., expected_worker_id: _Optional[str] = ..., run: _Optional[str] = ..., attempts: _Optional[_Iterable[_Union[StagedAttempt, _Mapping]]] = ...) -> None: ...

class BeginResponse(_message.Message):
    __slots__ = ("published_tasks", "previous_workers", "published_contents", "run_continues")
    PUBLISHED_TASKS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_CONTENTS_FIELD_NUMBER: _ClassVar[int]
    RUN_CONTINUES_FIELD_NUMBER: _ClassVar[int]
    published_tasks: _containers.RepeatedScalarFieldContainer[int]
    previous_workers: _containers.RepeatedCompositeFieldContainer[AssignedWorker]
    published_contents: _containers.RepeatedCompositeFieldContainer[_messaging_pb2.TaskContent]
    run_continues: bool
    def __init__(self, published_tasks: _Optional[_Iterable[int]] = ..., previous_workers: _Optional[_Iterable[_Union[AssignedWorker, _Mapping]]] = ..., published_contents: _Optional[_Iterable[_Union[_messaging_pb2.TaskContent, _Mapping]]] = ..., run_continues: bool = ...) -> None: ...

class TapRequest(_message.Message):
    __slots__ = ("tasks", "sample", "max_per_second", "max_bytes")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    MAX_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedScalarFieldContainer[int]
    sample: float
    max_per_second: int
    max_bytes: int
    def __init__(self, tasks: _Optional[_Iterable[int]] = ..., sample: _Optional[float] = ..., max_per_second: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class TapResponse(_message.Message):
    __slots__ = ("messages", "passed_messages", "omitted_messages")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PASSED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OMITTED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[TappedMessage]
    passed_messages: int
    omitted_messages: int
    def __init__(self, messages: _Optional[_Iterable[_Union[TappedMessage, _Mapping]]] = ..., passed_messages: _Optional[int] = ..., omitted_messages: _Optional[int] = ...) -> None: ...

class TappedMessage(_message.Message):
    __slots__ = ("task", "source", "payload", "payload_bytes", "headers", "headers_bytes", "sender_id", "from_worker", "place", "redelivered", "accepted_unix_micros", "seen_unix_micros")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_WORKER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_UNIX_MICROS_FIELD_NUMBER: _ClassVar[int]
    SEEN_UNIX_MICROS_FIELD_NUMBER: _ClassVar[int]
    task: int
    source: int
    payload: bytes
    payload_bytes: int
    headers: bytes
    headers_bytes: int
    sender_id: str
    from_worker: bool
    place: str
    redelivered: bool
    accepted_unix_micros: int
    seen_unix_micros: int
    def __init__(self, task: _Optional[int] = ..., source: _Optional[int] = ..., payload: _Optional[bytes] = ..., payload_bytes: _Optional[int] = ..., headers: _Optional[bytes] = ..., headers_bytes: _Optional[int] = ..., sender_id: _Optional[str] = ..., from_worker: bool = ..., place: _Optional[str] = ..., redelivered: bool = ..., accepted_unix_micros: _Optional[int] = ..., seen_unix_micros: _Optional[int] = ...) -> None: ...

class GetDebugRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDebugResponse(_message.Message):
    __slots__ = ("name", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    content: bytes
    def __init__(self, name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class SetLoggingRequest(_message.Message):
    __slots__ = ("level", "duration_seconds", "interval_seconds")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    level: str
    duration_seconds: float
    interval_seconds: float
    def __init__(self, level: _Optional[str] = ..., duration_seconds: _Optional[float] = ..., interval_seconds: _Optional[float] = ...) -> None: ...

class SetLoggingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricFamily(_message.Message):
    __slots__ = ("name", "help", "kind", "label_names", "samples")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LABEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    help: str
    kind: MetricKind
    label_names: _containers.RepeatedScalarFieldContainer[str]
    samples: _containers.RepeatedCompositeFieldContainer[MetricSample]
    def __init__(self, name: _Optional[str] = ..., help: _Optional[str] = ..., kind: _Optional[_Union[MetricKind, str]] = ..., label_names: _Optional[_Iterable[str]] = ..., samples: _Optional[_Iterable[_Union[MetricSample, _Mapping]]] = ...) -> None: ...

class MetricSample(_message.Message):
    __slots__ = ("label_values", "value", "bounds", "counts")
    LABEL_VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    label_values: _containers.RepeatedScalarFieldContainer[str]
    value: float
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, label_values: _Optional[_Iterable[str]] = ..., value: _Optional[float] = ..., bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class ReportProgramRequest(_message.Message):
    __slots__ = ("topology", "expected_worker_id", "program", "assignment_version", "components", "metrics", "ended")
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    topology: str
    expected_worker_id: str
    program: str
    assignment_version: int
    components: _containers.RepeatedCompositeFieldContainer[ComponentStatus]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricFamily]
    ended: bool
    def __init__(self, topology: _Optional[str] = ..., expected_worker_id: _Optional[str] = ..., program: _Optional[str] = ..., assignment_version: _Optional[int] = ..., components: _Optional[_Iterable[_Union[ComponentStatus, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[MetricFamily, _Mapping]]] = ..., ended: bool = ...) -> None: ...

class ReportProgramResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CallProgramRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    def __init__(self, request: _Optional[bytes] = ...) -> None: ...

class CallProgramResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: bytes
    def __init__(self, response: _Optional[bytes] = ...) -> None: ...
