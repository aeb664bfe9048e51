"""Queue of the local jobs of a host: first come, first served, without a process that serves it.

Each job that has not ended holds a ticket: a numbered file with a lock that its supervisor holds. The number orders the
jobs; the lock tells whether the supervisor lives, so that the ticket of a killed one blocks no job. A job may run when
fewer tickets than its ``max_parallel`` are ahead of its ticket.

    <home>/queue/<boot id>/
      lock                    held while a ticket is added, or a ticket of a dead supervisor is removed
      000000000017            a ticket
"""

from __future__ import annotations

import os
from pathlib import Path

from trainer_core.backends.local.host import get_host_identity
from trainer_core.node import locks

_LOCK = "lock"


class Ticket:
    """Place of one job in the queue."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def number(self) -> int:
        """Number of the ticket; jobs with lower numbers came earlier."""
        return int(self._path.name)

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class JobQueue:
    """The queue of this host in one state folder. Hosts that share a folder have a queue each."""

    def __init__(self, path: Path) -> None:
        host = get_host_identity()
        self.path = path / (host.boot_id or host.hostname)

    def join(self) -> Ticket:
        """Take the next number."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        with locks.locked(self.path / _LOCK):
            path = self.path / f"{max(self._list_numbers(), default=0) + 1:012d}"
            return Ticket(path, locks.acquire(path, 0))

    def count_ahead(self, ticket: Ticket, limit: int) -> int:
        """Return how many jobs are ahead of one.

        Removes tickets of killed supervisors. Hundreds of jobs can wait, so each tests only the tickets that decide
        about its own turn: those that may run, and the one directly before its own.
        """
        ahead = [number for number in self._list_numbers() if number < ticket.number]
        if len(ahead) < limit:
            return len(ahead)
        with locks.locked(self.path / _LOCK):
            tickets = {self.path / f"{number:012d}" for number in (*ahead[:limit], ahead[-1])}
            dead = {path for path in tickets if not locks.is_locked(path)}
            for path in dead:
                path.unlink(missing_ok=True)
        return len(ahead) - len(dead)

    def _list_numbers(self) -> list[int]:
        try:
            return sorted(int(path.name) for path in self.path.iterdir() if path.name.isdecimal())
        except FileNotFoundError:
            return []  # Removed as the queue of an earlier boot by a host that has another one.
