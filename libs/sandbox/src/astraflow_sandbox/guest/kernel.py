"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

MB = 1 << 20

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
NEW_NS, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
NEW_CGROUP = 0x2000000

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """``result``; :class:`OSError` that begins with ``what`` if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(what: str, number: int, *arguments: object) -> int:
    """The result of a system call by its number; :class:`OSError` begins with ``what``."""
    return checked(libc.syscall(number, *arguments), what)


def prctl(option: int, value: int, *more: object) -> None:
    """``prctl(2)``."""
    filled = [*more, 0, 0, 0][:3]
    checked(libc.prctl(option, value, *filled), f"prctl {option}")


def drop_capabilities() -> None:
    """Have none, in whatever user namespace this is (``capset(2)``, version 3)."""
    header = struct.pack("=Ii", 0x20080522, 0)
    checked(libc.capset(header, struct.pack("=6I", *[0] * 6)), "capset")


def above_standard(descriptor: int) -> int:
    """``descriptor`` moved where no child puts its own."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
