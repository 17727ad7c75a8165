"""The guaranteed messages of programs: each arrives once, however the program ended."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

from campaigns.programs import environment
from campaigns.soak.household import exit_code_of
from campaigns.soak.lives import Household, Told
from helpers.streams import Stream

_SECONDS = 300.0
_NOT_CLOSED = re.compile(r"client\.not_closed .*\bmessages=(\d+)")


@dataclass(slots=True)
class Owed:
    """The least and the most messages of one process in each stream, and its problems as text."""

    least: Counter[Stream] = field(default_factory=Counter)
    most: Counter[Stream] = field(default_factory=Counter)
    lost_and_told: int = 0
    """The number of messages that its clients report as dropped."""
    faults: list[str] = field(default_factory=list)

    def faults_of(self, received: dict[Stream, int]) -> list[str]:
        """Return the missing and the extra messages, as text."""
        faults = [
            f"source {source} to task {task}: {received.get((source, task), 0)} of at most {most} received"
            for (source, task), most in self.most.items()
            if received.get((source, task), 0) > most
        ]
        if (missing := self.missing(received)) > self.lost_and_told:
            streams = [stream for stream, least in self.least.items() if received.get(stream, 0) < least]
            faults.append(
                f"{missing} messages lost, of which {self.lost_and_told} were told, in streams {streams[:5]}"
            )
        return faults

    def missing(self, received: dict[Stream, int]) -> int:
        """Return the number of missing messages that must arrive."""
        return sum(max(0, least - received.get(stream, 0)) for stream, least in self.least.items())


def live(household: Household) -> Owed:
    """Run a process with these programs until it exits."""
    try:
        ended = subprocess.run(
            [sys.executable, "-W", "ignore::ResourceWarning", "-m", "campaigns.soak.household"],
            env=environment(),
            input=pickle.dumps(household),
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as stuck:
        return Owed(faults=[f"a process has not ended after {_SECONDS} s: {stuck.stdout!r} {stuck.stderr!r}"])
    log = ended.stderr.decode(errors="replace")
    owed = Owed(lost_and_told=sum(map(int, _NOT_CLOSED.findall(log))))
    told = [Told(**json.loads(line)) for line in ended.stdout.splitlines()]
    for each in told:
        _owe(owed, each, household)
    owed.faults += [each.error for each in told if each.error]
    if missing := {life.source for life in household.lives} - {each.source for each in told}:
        owed.faults.append(f"programs {sorted(missing)} have reported nothing; {log}")
    if ended.returncode != exit_code_of(household.itself):
        owed.faults.append(f"{household.itself} has ended with {ended.returncode}: {log}")
    if "Traceback" in log:
        owed.faults.append(log)
    return owed


def _owe(owed: Owed, told: Told, household: Household) -> None:
    """Add a program's messages; none must arrive if it dropped its client and its process was killed."""
    in_thread = told.source in {life.source for life in household.clients}
    cut_off = in_thread and household.itself.ending.hard
    sure = told.owed or (told.dropped and not cut_off)
    for task, count in told.sent.items():
        stream = (told.source, int(task))
        owed.most[stream] = count
        if sure:
            owed.least[stream] = count
