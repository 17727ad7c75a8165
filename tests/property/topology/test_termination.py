"""The end of a topology of several processes is detected, and never too early."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tuplewire_topology.coordination.coordinator import TerminationDetector
from tuplewire_topology.running.statistics import ProcessReport


@dataclass
class Process:
    """A process of the model: the tuples that its spouts will emit, and the tuples that it must execute."""

    spouts: int
    todo: list[int] = field(default_factory=list)
    sent: int = 0
    taken: int = 0

    @property
    def at_rest(self) -> bool:
        return not self.spouts and not self.todo

    def report(self) -> ProcessReport:
        return ProcessReport(self.at_rest, self.sent, self.taken)


class World:
    """Processes, messages that contain how many they lead to, and a coordinator; any of it takes any time."""

    def __init__(self, data: st.DataObject, count: int) -> None:
        self.draw = data.draw
        self.processes = [Process(self.draw(st.integers(0, 3))) for _ in range(count)]
        self.on_the_way: list[tuple[int, int]] = []
        self.termination = TerminationDetector(count)
        self.asked: set[int] = set()
        self.answers: list[tuple[int, int, ProcessReport]] = []
        self.wave = 0

    @property
    def over(self) -> bool:
        return not self.on_the_way and all(process.at_rest for process in self.processes)

    def emit(self, process: Process) -> None:
        process.spouts -= 1
        self.send(process, self.draw(st.integers(0, 3)))

    def execute(self, process: Process) -> None:
        for _ in range(process.todo.pop()):
            self.send(process, self.draw(st.integers(0, 1)))

    def send(self, process: Process, leads_to: int) -> None:
        process.sent += 1
        self.on_the_way.append((self.draw(st.integers(0, len(self.processes) - 1)), leads_to))

    def arrive(self, number: int) -> None:
        to, leads_to = self.on_the_way.pop(number)
        self.processes[to].taken += 1
        self.processes[to].todo.append(leads_to)

    def coordinate(self) -> None:
        """Request a report from a process, or deliver a report."""
        if self.wave != self.termination.wave:
            self.wave = self.termination.wave
            self.asked = set()
        waiting = [number for number in range(len(self.processes)) if number not in self.asked]
        if self.answers and (not waiting or self.draw(st.booleans())):
            number, wave, report = self.answers.pop(self.draw(st.integers(0, len(self.answers) - 1)))
            said = self.termination.add_report(number, wave, report)
            assert not said or self.over, "over is said too early"
        else:
            number = self.draw(st.sampled_from(waiting))
            self.asked.add(number)
            self.answers.append((number, self.wave, self.processes[number].report()))
            if self.draw(st.integers(0, 4)) == 0:
                self.answers.append(self.answers[-1])  # a duplicate

    def step(self) -> None:
        able = [process for process in self.processes if process.spouts]
        busy = [process for process in self.processes if process.todo]
        choices = [self.coordinate]
        if able:
            choices.append(lambda: self.emit(self.draw(st.sampled_from(able))))
        if busy:
            choices.append(lambda: self.execute(self.draw(st.sampled_from(busy))))
        if self.on_the_way:
            choices.append(lambda: self.arrive(self.draw(st.integers(0, len(self.on_the_way) - 1))))
        choices[self.draw(st.integers(0, len(choices) - 1))]()


@given(st.data(), st.integers(1, 4))
def test_over_is_said_when_it_is_and_not_before(data: st.DataObject, count: int) -> None:
    """In any order of work, arrivals, requests and reports, no wave detects the end while work remains."""
    world = World(data, count)
    for _ in range(data.draw(st.integers(0, 60))):
        if not world.termination.is_finished:
            world.step()
    while world.on_the_way or not all(process.at_rest for process in world.processes):
        assert not world.termination.is_finished
        for process in world.processes:
            if process.spouts:
                world.emit(process)
            while process.todo:
                world.execute(process)
        while world.on_the_way:
            world.arrive(0)
    for _ in range(3):  # the wave that was already started, and two more
        wave = world.termination.wave
        for number, process in enumerate(world.processes):
            world.termination.add_report(number, wave, process.report())
    assert world.termination.is_finished


def test_counts_that_do_not_add_up() -> None:
    """After a restart, the topology has finished after two waves at rest with equal counts."""
    termination = TerminationDetector(2, exact=False)
    left = {
        0: ProcessReport(is_idle=True, sent=9, received=0),
        1: ProcessReport(is_idle=True, sent=0, received=4),
    }
    for process, report in left.items():
        termination.add_report(process, 1, report)
    assert not termination.add_report(0, 2, ProcessReport(is_idle=True, sent=10, received=0))
    assert not termination.add_report(1, 2, left[1])
    for wave in (3, 4):
        for process, report in left.items():
            termination.add_report(process, wave, report)
        assert termination.is_finished == (wave == 4)


def test_reports_that_do_not_count() -> None:
    """A report of an unknown process is ignored; a topology without processes has finished."""
    quiet = ProcessReport(is_idle=True, sent=0, received=0)
    termination = TerminationDetector(1)
    assert not termination.add_report(1, 1, quiet)
    assert termination.unreported == {0}
    assert TerminationDetector(0).is_finished
