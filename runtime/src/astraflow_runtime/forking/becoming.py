"""A fork becomes ``python -m MODULE …``: to the system, to its parent and to itself it is as a process that was started.

It has its own session, files, environment and lines in ``/proc``. What it shares with the process that it was forked from
are the modules that :func:`note_what_is_imported` noted there. Linux only.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import importlib
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from astraflow_wire.host.parent import signal_at_parent_death

ROOM_VARIABLE = "ASTRAFLOW_ROOM"
ROOM = "-" * 20_000
"""Among the arguments and in the environment of a process that forks: the kernel shows the contents of this memory, and what its
forks write there must fit into it."""

_imported: set[str] = set()
_path: list[str] = []
_kept: list[Any] = []
"""What is the parent's and must not be freed: that would close descriptors that are others here."""


@dataclass(frozen=True)
class ModuleProcess:
    """``words`` are ``[interpreter, "-m", module, …]``. ``dies_with_parent``: the kernel kills it when its parent ends."""

    words: list[str]
    directory: str
    environment: dict[str, str] = field(repr=False)
    new_session: bool
    dies_with_parent: bool


def note_what_is_imported() -> None:
    """Forks of this process keep these modules, and no other that a process between imports."""
    _imported.update(sys.modules)
    there = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    _path[:] = [part for part in sys.path[1:] if part not in there]


def is_noted(module: str) -> bool:
    """Whether forks of this process keep a module."""
    return module in _imported


def is_a_fork() -> bool:
    """Whether this process or the one that it was forked from called :func:`note_what_is_imported`."""
    return bool(_imported)


def become(asked: ModuleProcess, streams: Sequence[int], kept: Sequence[int]) -> NoReturn:
    """Run the module and exit, whatever happens. ``streams`` are the descriptors for standard input, output and errors (-1: the
    parent's), ``kept`` the others that stay open."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(asked.environment)
        show_in_proc(asked.words, asked.environment)
        if asked.dies_with_parent:
            signal_at_parent_death(signal.SIGKILL)
        _reset_signals()
        _pass(streams, kept)
        os.chdir(asked.directory)
        if asked.new_session:
            os.setsid()
        _forget_the_parent()
        code = _run(asked.words)
    except BaseException:  # noqa: BLE001 - nothing may return into what the parent was doing
        traceback.print_exc()
    finally:
        os._exit(code)


def show_in_proc(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """``/proc/self/cmdline`` and ``environ`` are the memory in which the kernel put those of the first process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, end_of_arguments, variables, end_of_variables = map(int, fields[45:49])
    pairs = [f"{name}={value}" for name, value in environment.items()]
    for texts, begin, end in (
        (words, arguments, end_of_arguments),
        (pairs, variables, end_of_variables),
    ):
        text = b"".join(os.fsencode(part) + b"\0" for part in texts)[: end - begin - 1]
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _pass(streams: Sequence[int], kept: Sequence[int]) -> None:
    """Only the standard streams and ``kept`` stay open."""
    copies = [os.dup(fd) if fd >= 0 else -1 for fd in streams]  # none is 0, 1 or 2
    for number, fd in enumerate(copies):
        if fd >= 0:
            os.dup2(fd, number)
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        os.set_inheritable(fd, True)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _forget_the_parent() -> None:
    _kept.extend((dict(sys.modules), sys.stdin, sys.stdout, sys.stderr, logging.root.handlers[:]))
    gc.freeze()
    for name in sys.modules.keys() - _imported:
        del sys.modules[name]
    more = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = [os.getcwd(), *more, *_path]
    importlib.invalidate_caches()
    atexit._clear()
    logging.root.handlers.clear()
    asyncio._set_running_loop(None)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")


def _run(words: Sequence[str]) -> int:
    module = words[2]
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # runpy warns of one that is imported
    sys.argv = ["", *words[3:]]
    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code if isinstance(code, int) else int(code is not None)
