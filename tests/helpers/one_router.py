"""A router of one worker, without a server: task 0 is local, task 1 is on another worker."""

from __future__ import annotations

from tuplewire_service.worker.assignment import AssignedWorker, Assignment

HERE = AssignedWorker("here", "127.0.0.1:1", (0,))
THERE = AssignedWorker("there", "127.0.0.1:2", (1,))
ASSIGNMENT = Assignment(1, "t", (HERE, THERE))
