"""The first code of a sandboxed process: gives up files, network and processes, then becomes the program.

Run as ``python -I -S confinement.py SETTINGS STATUS_FD`` in the program's folder, so it imports the standard library only.
``SETTINGS`` is JSON: ``isolated``, ``cpu_s``, ``memory_mb``, ``file_mb``. On ``STATUS_FD`` it writes ``ready`` before the
program begins, or why it cannot begin.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import sysconfig
import traceback
import types
from pathlib import Path
from typing import Any

PROGRAM = "main.py"
READY = "ready"
MB = 1 << 20
OPEN_FILES = 64
PROCESSES = 64

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_NEW_USER, _NEW_PID, _NEW_NET, _NEW_IPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH, _ASK_VERSION = 1, 1
_EXECUTE, _WRITE, _READ, _READ_FOLDER = 1, 2, 4, 8
_FILE_RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_LATEST_FILE_RIGHTS = 16
_TCP, _SCOPED = 0b11, 0b11
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def main(settings: dict[str, Any], status: int) -> None:
    """Confine this process and run the program; returns if that came to its end."""
    try:
        if settings["isolated"]:
            _checked(_libc.unshare(_NEW_USER | _NEW_PID | _NEW_NET | _NEW_IPC), "namespaces")
            _end_with_parent()
            # The first process of a namespace takes all others with it when it ends, so the program is the second.
            _continue_in_child(status)
            _continue_in_child(status)
        _end_with_parent()
        _limit(settings)
        if settings["isolated"]:
            _keep_files_out()
    except OSError as error:
        os.write(status, str(error).encode())
        os._exit(1)
    os.write(status, READY.encode())
    os.close(status)
    _become_program()


def _continue_in_child(status: int) -> None:
    child = os.fork()
    if child:
        os.close(status)
        _, ended = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(ended)
        os._exit(code if code >= 0 else 128 - code)
    _end_with_parent()


def _end_with_parent() -> None:
    """Be killed when the parent ends. ``unshare`` forgets it, and a child does not inherit it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit(settings: dict[str, Any]) -> None:
    cpu_s, memory, file = settings["cpu_s"], settings["memory_mb"] * MB, settings["file_mb"] * MB
    for what, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(what, (soft, hard))
    if settings["isolated"]:  # elsewhere it would count every process of the user
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))


def _keep_files_out() -> None:
    """Landlock: the program's folder, and to read the standard library and the system's libraries."""
    version = _checked(_libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION), "Landlock")
    every_file_right = (1 << _FILE_RIGHTS_OF_VERSION.get(version, _LATEST_FILE_RIGHTS)) - 1
    handled = [every_file_right]
    handled += [_TCP] if version >= 4 else []
    handled += [_SCOPED] if version >= 6 else []
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    rules = _checked(_libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0), "Landlock")
    library = sysconfig.get_paths()
    readable = {*SYSTEM_FOLDERS, library["stdlib"], library["platstdlib"]}
    for path in sorted(readable):
        _allow(rules, path, _READ | (_READ_FOLDER | _EXECUTE if os.path.isdir(path) else 0))
    for path in DEVICES:
        _allow(rules, path, _READ | _WRITE)
    _allow(rules, os.getcwd(), every_file_right)
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _checked(_libc.syscall(_RESTRICT_SELF, rules, 0), "Landlock")
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights, beneath)
    _checked(_libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0), "Landlock")
    os.close(beneath)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _become_program() -> None:
    """Run the program as the main module, with traces that show its own lines only."""
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = PROGRAM
    sys.modules["__main__"], sys.argv = module, [PROGRAM]
    try:
        exec(compile(Path(PROGRAM).read_bytes(), PROGRAM, "exec"), module.__dict__)  # noqa: S102 - confined by now
    except Exception as error:  # noqa: BLE001 - whatever it raises is shown on its standard error
        shown = error.__traceback__.tb_next if error.__traceback__ is not None else None
        traceback.print_exception(type(error), error, shown)
        sys.exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
