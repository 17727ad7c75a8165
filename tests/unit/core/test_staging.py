"""Staged attempts of sinks: kept complete and within limits, in memory and in one file."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tuplewire.errors import (
    EpochTooLargeError,
    ResourceLimitError,
    SequenceGapError,
    StagedDataLostError,
    StaleEpochError,
)
from tuplewire.session.pieces import wire_bytes
from tuplewire.values.group import TaskGroup
from tuplewire_service.worker import stage_file
from tuplewire_service.worker.stage_file import AttemptPart, StageFiles
from tuplewire_service.worker.staging import (
    IDLE_SECONDS,
    Attempt,
    AttemptName,
    Placement,
    StagedGroup,
    Staging,
)

SINK, OTHER = ("me", "s"), ("me", "other")


class File(AttemptPart):
    """A file that records whether it is closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def group(task: int, size: int = 1) -> TaskGroup:
    """Return a message to a task."""
    return TaskGroup.of(task, [b"x" * size])


def name(partition: int, attempt: str, messages: int = 0, pieces: int = 0) -> AttemptName:
    """Return an attempt's name."""
    return AttemptName(partition, attempt, messages, pieces)


def stage(
    state: Staging, attempt: str, *groups: TaskGroup, epoch: int = 1, piece: int = 0, now: float = 0.0
) -> Placement:
    """Stage a piece; an attempt such as `0a` starts with its partition."""
    return staged(state, attempt, *groups, epoch=epoch, piece=piece, now=now)[0]


def staged(
    state: Staging, attempt: str, *groups: TaskGroup, epoch: int = 1, piece: int = 0, now: float = 0.0
) -> tuple[Placement, Attempt]:
    """Stage a piece; on disk, it is written immediately."""
    placement, kept = state.reserve(SINK, epoch, name(int(attempt[0]), attempt), piece, groups, now)
    if placement is Placement.DISK:
        kept.file = kept.file or File()
        state.on_written(kept, [StagedGroup.of(kept, each, (0, 1)) for each in groups])
    return placement, kept


def tasks(stages: list[Attempt]) -> list[list[int]]:
    """Return the tasks of each attempt's groups."""
    return [[each.task for each in stage.groups] for stage in stages]


def test_chosen_attempts_come_in_the_order_of_partitions() -> None:
    """Chosen attempts are returned unchanged, ordered by partition; the others are dropped."""
    state = Staging(100_000, 1, 60)
    stage(state, "1a", group(1), group(2))
    stage(state, "1a", group(3), piece=1)
    stage(state, "0a", group(4))
    stage(state, "0b", group(5))
    held = state.memory_bytes
    chosen = state.choose(SINK, 1, [name(1, "1a", 3, 2), name(0, "0b", 1, 1)])
    assert tasks(chosen) == [[5], [1, 2, 3]]
    assert (len(state), state.memory_bytes) == (0, held - wire_bytes(group(4)))
    for each in chosen:
        for one in each.groups:
            state.free_group(one)
    assert state.memory_bytes == 0


@pytest.mark.parametrize(
    "wrong",
    [name(0, "0b", 2, 2), name(0, "0a", 1, 2), name(0, "0a", 2, 1), name(0, "0a", 3, 3)],
    ids=["another", "fewer messages", "fewer pieces", "more"],
)
def test_what_is_not_there_as_it_was_staged_is_not_chosen(wrong: AttemptName) -> None:
    """Choosing an unknown or incomplete attempt is an error that leaves the rest unchanged."""
    state = Staging(100_000, 1, 60)
    stage(state, "0a", group(1))
    stage(state, "0a", group(2), piece=1)
    stage(state, "1a", group(3))
    with pytest.raises(StagedDataLostError, match="compute the epoch again"):
        state.choose(SINK, 1, [name(1, "1a", 1, 1), wrong])
    with pytest.raises(StagedDataLostError):
        state.choose(SINK, 2, [name(1, "1a", 1, 1)])
    assert tasks(state.choose(SINK, 1, [name(1, "1a", 1, 1), name(0, "0a", 2, 2)])) == [[1, 2], [3]]


def test_pieces_follow_each_other() -> None:
    """The last piece may be repeated, the first one restarts the attempt, and a gap is an error."""
    state = Staging(100_000, 1, 60)
    with pytest.raises(SequenceGapError, match="run the Spark task again"):
        stage(state, "0a", group(1), piece=1)
    assert not state.is_open(SINK, 1)
    assert stage(state, "0a", group(1)) is Placement.MEMORY
    assert [state.is_open(SINK, epoch) for epoch in (1, 2)] == [True, False]
    assert stage(state, "0a", group(2), piece=1) is Placement.MEMORY
    assert stage(state, "0a", group(2), piece=1) is Placement.STAGED
    with pytest.raises(SequenceGapError):
        stage(state, "0a", group(2), piece=3)
    assert stage(state, "0a", group(7)) is Placement.MEMORY
    assert tasks(state.choose(SINK, 1, [name(0, "0a", 1, 1)])) == [[7]]


def test_a_later_epoch_ends_the_one_before() -> None:
    """A later epoch drops the previous one, and an earlier epoch is refused."""
    state = Staging(100_000, 1, 60)
    stage(state, "0a", group(1), epoch=4)
    stage(state, "0b", group(2), epoch=5)
    assert state.memory_bytes == wire_bytes(group(2))
    with pytest.raises(StaleEpochError, match="has begun epoch 5"):
        stage(state, "0c", group(3), epoch=4)
    assert tasks(state.choose(SINK, 5, [name(0, "0b", 1, 1)])) == [[2]]


def test_beyond_memory_it_goes_to_disk() -> None:
    """Memory and disk are both limited, and freed space is reused."""
    size = wire_bytes(group(1, 1000))
    state = Staging(4 * size, 2 * size, 60)
    rooms = [stage(state, "0a", group(1, 1000), piece=piece) for piece in range(3)]
    assert rooms == [Placement.MEMORY] * 3  # a quarter is reserved for the index
    _, kept = staged(state, "0a", group(1, 1000), piece=3)
    assert stage(state, "0a", group(1, 1000), piece=4) is Placement.DISK
    assert (state.disk_bytes, state.no_space_count) == (2 * size, 0)
    chosen = state.choose(SINK, 1, [name(0, "0a", 5, 5)])
    file = kept.file
    assert isinstance(file, File)
    for each in chosen[0].groups:
        assert not file.closed
        state.free_group(each)
    assert file.closed
    assert (state.memory_bytes, state.disk_bytes) == (0, 0)


def test_an_epoch_that_never_fits_is_refused() -> None:
    """An epoch waits while others use the space; one that can never fit is refused immediately."""
    state = Staging(1000, 1000, 60)
    state.reserve(OTHER, 1, name(0, "0x"), 0, [group(1, 600)], 0.0)
    assert stage(state, "0a", group(1, 600)) is Placement.DISK
    assert stage(state, "0a", group(1, 400), piece=1) is Placement.NO_SPACE
    assert state.no_space_count == 1
    with pytest.raises(EpochTooLargeError, match="raise its staging_disk_bytes"):
        stage(state, "0a", group(1, 1200), piece=1)


def test_an_attempt_is_measured_with_its_own_pieces() -> None:
    """An oversize attempt is refused even if a later attempt of its partition is small."""
    state = Staging(4000, 1, 60)
    stage(state, "0a", group(1, 2000))
    assert stage(state, "0b", group(1, 100), now=1.0) is Placement.MEMORY
    with pytest.raises(EpochTooLargeError):
        stage(state, "0a", group(1, 2000), piece=1, now=2.0)


def test_an_attempt_that_is_given_up_makes_room() -> None:
    """An idle attempt is dropped when another attempt of its partition needs the space."""
    state = Staging(1000, 1, 60)
    stage(state, "0a", group(1, 600))
    assert stage(state, "0b", group(1, 600), now=1.0) is Placement.NO_SPACE
    assert stage(state, "0b", group(1, 600), now=IDLE_SECONDS) is Placement.NO_SPACE
    assert stage(state, "0b", group(1, 600), now=IDLE_SECONDS + 1) is Placement.MEMORY
    with pytest.raises(StagedDataLostError):
        state.choose(SINK, 1, [name(0, "0a", 1, 1)])


def both(state: Staging, now: float) -> list[Placement]:
    """Stage a second piece of two sinks that have space for one piece each."""
    first = stage(state, "0a", group(1, 700), piece=1, now=now)
    second, _ = state.reserve(OTHER, 1, name(0, "0x"), 1, [group(1, 700)], now)
    return [first, second]


def test_sinks_that_wait_for_each_other_are_told() -> None:
    """If all sinks are blocked, the one that started last is refused, and the first continues."""
    state = Staging(2000, 1, 600)
    stage(state, "0a", group(1, 600))
    state.reserve(OTHER, 1, name(0, "0x"), 0, [group(1, 600)], 1.0)
    assert both(state, 2.0) == [Placement.NO_SPACE] * 2
    with pytest.raises(ResourceLimitError, match="the waiting epochs of this and other sinks"):
        both(state, IDLE_SECONDS + 2.0)
    state.discard(OTHER, 1, "0x")
    assert stage(state, "0a", group(1, 700), piece=1, now=IDLE_SECONDS + 3.0) is Placement.MEMORY


def test_sinks_wait_while_a_chosen_epoch_is_on_its_way() -> None:
    """No sink is refused while a chosen epoch will still free its space."""
    state = Staging(2000, 1, 600)
    chosen = ("me", "chosen")
    state.reserve(chosen, 1, name(0, "0c"), 0, [group(1, 100)], 0.0)
    (kept,) = state.choose(chosen, 1, [name(0, "0c", 1, 1)])
    stage(state, "0a", group(1, 600))
    state.reserve(OTHER, 1, name(0, "0x"), 0, [group(1, 600)], 1.0)
    assert both(state, 2.0) == [Placement.NO_SPACE] * 2
    assert both(state, IDLE_SECONDS + 2.0) == [Placement.NO_SPACE] * 2
    for each in kept.groups:
        state.free_group(each)
    with pytest.raises(ResourceLimitError):
        both(state, 2 * IDLE_SECONDS + 2.0)


def test_what_nobody_touches_goes() -> None:
    """An epoch without activity expires, for example after its driver failed."""
    state = Staging(1000, 1, 60)
    stage(state, "0a", group(1, 600))
    assert state.expire(60.0) == []
    assert state.expire(61.0) == [(SINK, 1)]
    assert (len(state), state.memory_bytes) == (0, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_is_closed_once_nobody_writes_to_it(*, fails: bool) -> None:
    """A dropped stage closes its file after the current write, even if the write fails."""
    state = Staging(600, 10_000, 60)
    placement, kept = state.reserve(SINK, 1, name(0, "0a"), 0, [group(1, 600)], 0.0)
    file = kept.file = File()
    assert (placement, kept.is_writing) == (Placement.DISK, True)
    assert stage(state, "0a", group(1, 600)) is Placement.NO_SPACE  # a retry, because the response was late
    state.discard(SINK, 1, "0a")
    seen = [file.closed]
    if fails:
        state.on_write_failed(SINK, kept)
    else:
        assert not state.on_written(kept, [])
    assert [*seen, file.closed] == [False, True]
    assert (state.memory_bytes, state.disk_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("piece", "size", "error"), [(1, 1, SequenceGapError), (0, 1_000_000, EpochTooLargeError)]
)
def test_a_refused_first_piece_leaves_no_epoch_open(piece: int, size: int, error: type[Exception]) -> None:
    """A refused first piece opens no epoch, so earlier epochs of its sink are not blocked."""
    state = Staging(100_000, 1, 60)
    with pytest.raises(error):
        stage(state, "0a", group(1, size), epoch=5, piece=piece)
    assert state.expire(1e9) == []
    stage(state, "0a", group(1), epoch=4)
    with pytest.raises(error):
        stage(state, "0b", group(1, size), piece=piece, epoch=4)
    assert tasks(state.choose(SINK, 4, [name(0, "0a", 1, 1)])) == [[1]]


MIB = 1 << 20


def descriptors() -> set[str]:
    """Return the unnamed files that this process has open."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(each.readlink()))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return {each for each in found if each.endswith("(deleted)")}


def read(file: AttemptPart, places: list[tuple[int, int]]) -> list[TaskGroup]:
    """Return the groups at some places of a file."""
    return [group for place in places for group in file.read(*place)]


def held_bytes(file: AttemptPart) -> int:
    """Return the disk space that the file uses."""
    return os.fstat(file._shared.file.fileno()).st_blocks * 512


def test_a_thousand_attempts_have_one_descriptor(tmp_path: Path) -> None:
    """The descriptor is closed with the last attempt."""
    before = descriptors()
    files = StageFiles(str(tmp_path))
    attempts = [files.create_part() for _ in range(1000)]
    for each in attempts:
        each.write([group(1)])
    assert len(descriptors() - before) == 1
    for each in attempts:
        each.close()
    assert descriptors() == before
    again = files.create_part()
    assert [each.task for each in read(again, again.write([group(7)]))] == [7]
    again.close()
    assert descriptors() == before


@pytest.mark.skipif(not hasattr(stage_file._libc, "fallocate"), reason="this system frees no part of a file")
def test_space_comes_back_with_each_attempt(tmp_path: Path) -> None:
    """Closing an attempt frees its blocks, even if its pieces are small."""
    files = StageFiles(str(tmp_path))
    stays = files.create_part()
    place = stays.write([group(1)])
    large = files.create_part()
    large.write([group(2, 4 * MIB)])
    small = [files.create_part() for _ in range(100)]
    for each in small:
        each.write([group(3)])
    assert held_bytes(stays) >= 4 * MIB + 101 * 4096
    for each in (large, *small):
        each.close()
    assert held_bytes(stays) <= 64 * 1024
    assert [each.task for each in read(stays, place)] == [1]
    stays.close()


def test_another_file_begins_before_the_system_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the size limit, new attempts use a new file; existing attempts keep the old one."""
    monkeypatch.setattr(stage_file, "_MAX_FILE_BYTES", MIB)
    before = descriptors()
    files = StageFiles(str(tmp_path))
    first = files.create_part()
    place = first.write([group(1, 2 * MIB)])
    second = files.create_part()
    second.write([group(2)])
    assert len(descriptors() - before) == 2
    place += first.write([group(3)])
    assert [each.task for each in read(first, place)] == [1, 3]
    first.close()
    assert len(descriptors() - before) == 1
    second.close()
    assert descriptors() == before


def test_what_cannot_be_written_is_an_error_with_the_setting(tmp_path: Path) -> None:
    """A missing directory and a failed write are errors that name the setting."""
    with pytest.raises(ResourceLimitError, match="set staging_directory"):
        StageFiles(str(tmp_path / "none")).create_part()
    attempt = StageFiles(str(tmp_path)).create_part()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    try:
        with pytest.raises(ResourceLimitError, match="set staging_directory"):
            attempt.write([group(1, 2 * MIB)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    attempt.close()
