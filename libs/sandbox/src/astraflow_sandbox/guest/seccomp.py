"""System calls that a program may not make, as a seccomp filter in BPF.

Denied is what opens a way to the kernel or to other processes that no program of a policy needs: sockets but for pairs
of AF_UNIX (asyncio wakes itself by one), tracing, mounts, namespaces, keys, BPF, userfaultfd, io_uring, objects of
System V and message queues (they outlive a program), clocks, modules. Calls newer than the table do not exist.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from astraflow_sandbox.guest import kernel

# name: (x86-64, aarch64), as in the kernel's tables; -1 where there is none.
DENIED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "open_tree": (428, 428), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "socket": (41, 198), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "connect": (42, 203), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semctl": (66, 191), "msgget": (68, 186), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "fanotify_init": (300, 262), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162), "acct": (163, 89),
    "quotactl": (179, 60), "lookup_dcookie": (212, 18), "personality": (135, 92), "iopl": (172, -1), "ioperm": (173, -1),
    "vhangup": (153, 58), "syslog": (103, 116), "seccomp": (317, 277), "memfd_secret": (447, 447),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
OF_OTHERS = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274),
}  # fmt: skip
"""Allowed with 0 as their process, which is the caller's own."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE, _CLONE3, _SOCKETPAIR = (56, 220), 435, (53, 199)
_LAST_KNOWN = 450
_NEW_ANY = (
    kernel.NEW_NS
    | kernel.NEW_CGROUP
    | kernel.NEW_UTS
    | kernel.NEW_IPC
    | kernel.NEW_USER
    | kernel.NEW_PID
    | kernel.NEW_NET
)
_AF_UNIX = 1
_LOAD, _EQUALS, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x50000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def problem() -> str:
    """Why there is no filter for this machine; '' if there is one."""
    machine = os.uname().machine
    return "" if machine in _ARCHITECTURES else f"no table of system calls for {machine}"


def machine_index() -> int:
    """Which number of each call in the table is that of this machine."""
    return _ARCHITECTURES[os.uname().machine][0]


def filter_program() -> bytes:
    """The filter of this machine, instructions of 8 bytes each."""
    which, architecture = _ARCHITECTURES[os.uname().machine]
    refuse, absent = _return(_ERROR | errno.EPERM), _return(_ERROR | errno.ENOSYS)
    load_number = _instruction(_LOAD, 0, 0, _NUMBER)
    code = [_instruction(_LOAD, 0, 0, _ARCHITECTURE), _instruction(_EQUALS, 1, 0, architecture)]
    code += [_return(_KILL), load_number, _instruction(_AT_LEAST, 0, 1, _LAST_KNOWN + 1), absent]
    code += [
        _instruction(_EQUALS, 0, 1, _CLONE3),
        absent,
    ]  # libc takes clone then, whose flags can be read
    for numbers in DENIED.values():
        if (number := numbers[which]) >= 0:
            code += [_instruction(_EQUALS, 0, 1, number), refuse]
    argument = _instruction(_LOAD, 0, 0, _FIRST_ARGUMENT)
    for numbers in OF_OTHERS.values():
        code += [_instruction(_EQUALS, 0, 4, numbers[which]), argument]
        code += [_instruction(_EQUALS, 1, 0, 0), refuse, _return(_ALLOW)]
    code += [_instruction(_EQUALS, 0, 4, _CLONE[which]), argument]
    code += [_instruction(_ANY_BIT, 0, 1, _NEW_ANY), refuse, _return(_ALLOW)]
    code += [_instruction(_EQUALS, 0, 3, _SOCKETPAIR[which]), argument]
    code += [_instruction(_EQUALS, 1, 0, _AF_UNIX), refuse, _return(_ALLOW)]
    return b"".join(code)


def install(program: bytes) -> None:
    """Hold this process and all that it starts to ``program``; needs no_new_privs."""
    described = _Program(len(program) // 8, program)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(described))


def _instruction(code: int, then: int, otherwise: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _return(value: int) -> bytes:
    return _instruction(_RETURN, 0, 0, value)
