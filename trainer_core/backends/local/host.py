"""Identity of a host, recorded with each local job: only a process that sees the same processes may signal them."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_MACHINE_ID = Path("/etc/machine-id")
_HASH_LENGTH = 12


@dataclass(frozen=True)
class HostIdentity:
    """Where a process runs. A value is empty where the operating system does not have it."""

    hostname: str
    #: Identity of the running kernel. It changes when the machine boots.
    boot_id: str
    #: Namespace of process ids. A process id has a meaning only in one namespace of one kernel.
    pid_namespace: str
    #: Hash of the machine id, which stays the same over boots.
    machine: str

    def sees_processes_of(self, other: HostIdentity) -> bool:
        """Return whether the process ids of the other identity have the same meaning here."""
        if not self.boot_id:
            return self.hostname == other.hostname
        return (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)

    def sees_locks_of(self, other: HostIdentity) -> bool:
        """Return whether a lock that a living process of the other identity holds is visible here.

        It is in another PID namespace of the same kernel. After the machine has booted, no such process lives. A file
        system that hosts share may or may not share locks.
        """
        has_rebooted = bool(self.machine) and (self.hostname, self.machine) == (other.hostname, other.machine)
        same_kernel = bool(self.boot_id) and self.boot_id == other.boot_id
        return self.sees_processes_of(other) or same_kernel or has_rebooted

    def __str__(self) -> str:
        return f"host {self.hostname!r} (boot {self.boot_id[:8] or 'unknown'}, {self.pid_namespace or 'no namespace'})"


def get_host_identity() -> HostIdentity:
    """Return the identity of the host and the PID namespace of this process."""
    machine = _read(_MACHINE_ID)
    try:
        pid_namespace = str(_PID_NAMESPACE.readlink())
    except OSError:
        pid_namespace = ""
    return HostIdentity(
        hostname=socket.gethostname(),
        boot_id=_read(_BOOT_ID),
        pid_namespace=pid_namespace,
        machine=hashlib.sha256(machine.encode()).hexdigest()[:_HASH_LENGTH] if machine else "",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
