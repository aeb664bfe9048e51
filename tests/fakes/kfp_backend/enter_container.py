"""Starts a program in a dedicated container: ``python -I -S enter_container.py specification.json``.

Namespaces of users, mounts and processes; no root rights and no daemon are needed, only a kernel that permits them. The
program sees this machine read-only, with fresh folders in place of those that a pod of KFP has for itself. It is user
1000 without capabilities, and may write where a pod's user may write.

Four processes: this one; process 1 of the container, which passes SIGTERM to the launcher's group as Argo's emissary
does, and with whose end all other processes end; one in place of the launcher, the leader of that group, which SIGTERM
ends at once; and the program. Nothing is imported but the standard library, and of that little: each step of a pipeline
pays for it.
"""

# Each step pays for what is imported here, and os is loaded anyway.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH115, PTH123, PTH208, PTH211, S606

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CLONE = 0x00020000 | 0x10000000 | 0x20000000  # mounts, users, processes
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MOUNT_SETATTR, _AT_RECURSIVE = 442, 0x8000
_PR_SET_PDEATHSIG = 1
_USER = 1000

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def main() -> None:
    """Enter the container and start the program; write its exit code to the status pipe when it has ended."""
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    user, group = os.getuid(), os.getgid()
    _check(_libc.unshare(_CLONE), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{_USER} {user} 1"),
        ("gid_map", f"{_USER} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    _build_root(spec)
    # SIGTERM waits until the handlers are there: the program may be ready, and be terminated, before they are.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    first = os.fork()
    if first == 0:
        _run_first(spec)
    _silence()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.waitpid(first, 0)


def _build_root(spec: dict[str, Any]) -> None:
    """Mount what the program sees; each folder of ``fresh`` and ``mounts`` takes the place of this machine's."""
    root = spec["root"]
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    _check(_libc.mount(b"tmpfs", os.fsencode(root), b"tmpfs", 0, None), f"tmpfs at {root}")
    fresh = {name.lstrip("/").split("/")[0] for name in (*spec["fresh"], *spec["mounts"])}
    for name in sorted({*os.listdir("/"), *fresh}):
        path, target = f"/{name}", f"{root}/{name}"
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
        elif name in spec["hidden"] or not os.path.exists(path):
            os.makedirs(target, exist_ok=True)
        elif os.path.isdir(path):
            os.mkdir(target)
            if name != "proc":
                _mount(path, target, _MS_BIND | _MS_REC)
    for name in spec["fresh"]:
        os.makedirs(root + name, exist_ok=True)
    _set_read_only(root)
    _check(_libc.mount(b"tmpfs", os.fsencode(f"{root}/dev/shm"), b"tmpfs", 0, None), "tmpfs at /dev/shm")
    for target, source in sorted({**spec["fresh"], **spec["mounts"]}.items()):
        os.makedirs(root + target, exist_ok=True)
        _mount(source, root + target, _MS_BIND | _MS_REC)


def _run_first(spec: dict[str, Any]) -> None:
    """Be process 1: start the program in the launcher's group, report its end, and remain until killed."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
    root = spec["root"]
    _check(_libc.mount(b"proc", os.fsencode(f"{root}/proc"), b"proc", 0, None), "proc")
    os.chroot(root)
    os.chdir(spec["directory"])
    launcher = os.fork()
    if launcher == 0:
        _silence()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        while True:
            signal.pause()
    os.setpgid(launcher, launcher)
    program = os.fork()
    if program == 0:
        _execute(spec, launcher)
    _silence()
    signal.signal(signal.SIGTERM, lambda *_: _signal_group(launcher))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            signal.pause()
            continue
        if ended == program:
            os.write(spec["status"], b"%d\n" % os.waitstatus_to_exitcode(status))


def _execute(spec: dict[str, Any], group: int) -> None:
    os.setpgid(0, group)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.close(spec["status"])
    try:
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])
    except OSError as error:
        os.write(2, f"exec {spec['command'][0]}: {error.strerror}\n".encode())
        os._exit(1)


def _signal_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGTERM)
    except ProcessLookupError:
        return  # It has ended.


def _set_read_only(root: str) -> None:
    attributes = _MountAttributes(set=1)
    folder = os.open(root, os.O_PATH)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    done = _libc.syscall(_MOUNT_SETATTR, folder, b"", _AT_RECURSIVE | 0x1000, ctypes.byref(attributes), size)
    os.close(folder)
    _check(done, "mount_setattr")


def _mount(source: str | None, target: str, flags: int) -> None:
    what = os.fsencode(source) if source else b"none"
    _check(_libc.mount(what, os.fsencode(target), None, flags, None), f"mount {source} at {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _silence() -> None:
    """Let go of the program's output: its end is seen when the program and its children have closed it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


if __name__ == "__main__":
    main()
