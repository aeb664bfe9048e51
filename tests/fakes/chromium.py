#!/usr/bin/env python3
"""Chromium that does not hear of network interfaces that come and go.

Chromium fails every request that waits for a connection with ERR_NETWORK_CHANGED as soon as any interface of the
machine gets an address, also for requests to loopback. Each container that the other tests start does so. It learns
of addresses by a netlink socket and counts as online where it cannot open one, so this process forbids itself
(seccomp, needs no privilege) to open any, and becomes Chromium. On other processors than the two below, Chromium runs
as it is.
"""

import ctypes
import os
import platform
import shutil
import struct
import sys

_SOCKET_CALL = {"x86_64": 41, "aarch64": 198}.get(platform.machine())
_AF_NETLINK, _NETLINK_ROUTE, _EAFNOSUPPORT = 16, 0, 97
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
# BPF instructions. A comparison has the numbers of instructions to skip if it is true, and if it is false.
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_CALL, _FIRST_ARGUMENT, _THIRD_ARGUMENT = 0, 16, 32  # offsets in `struct seccomp_data`


class _Program(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _forbid_netlink() -> None:
    instructions = (
        (_LOAD, 0, 0, _CALL),
        (_EQUALS, 0, 5, _SOCKET_CALL),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUALS, 0, 3, _AF_NETLINK),
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_EQUALS, 0, 1, _NETLINK_ROUTE),
        (_RETURN, 0, 0, _FAIL | _EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in instructions))
    program = _Program(len(instructions), ctypes.cast(packed, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "prctl refused the filter")


def find() -> str | None:
    """Path of Chromium or Chrome on this machine."""
    return shutil.which("chromium") or shutil.which("google-chrome")


if __name__ == "__main__":
    browser = find()
    if browser is None:
        sys.exit("no Chromium on PATH: `apt-get install chromium`")
    if _SOCKET_CALL is not None:
        _forbid_netlink()
    os.execv(browser, [browser, *sys.argv[1:]])  # noqa: S606 -- an argument vector, no shell
