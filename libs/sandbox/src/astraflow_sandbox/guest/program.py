"""The process of one program: gives up what is left of the zygote, and becomes the program."""

from __future__ import annotations

import ast
import atexit
import linecache
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from astraflow_sandbox.guest import frames

NAME = "main.py"
READY, CELL_ENDED, CELL_RAISED = b"r", b".", b"!"
CHANNEL = 3
"""Descriptor by which the program comes."""


def become(confine: Callable[[], None]) -> None:
    """Confine this process, take a program from descriptor 3 and run it. Does not return."""
    try:
        os.setsid()
        confine()
        os.closerange(CHANNEL + 1, 1 << 20)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        channel = socket.socket(fileno=CHANNEL)
        channel.sendall(READY)
        _serve(channel)
    except BaseException:  # noqa: BLE001 - the zygote reads it, and nothing may return from here
        os.write(2, traceback.format_exc().encode())
    os._exit(1)


def _serve(channel: socket.socket) -> None:
    request = frames.receive(channel)
    if request is None:
        os._exit(0)
    header, body = request
    main = _main_module()
    cpu_s = header["cpu_s"]
    if header["mode"] == "program":
        channel.close()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        source = body[: header["program"]]
        _give_stdin(body[header["program"] :])
        os._exit(_ended(lambda: exec(_compiled(source, "exec"), main)))  # noqa: S102 - confined by now
    while request is not None:
        limit = int(time.process_time()) + cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        raised = _shown(partial(_run_cell, request[1], main))
        _flush()
        channel.sendall(CELL_RAISED if raised else CELL_ENDED)
        request = frames.receive(channel)
    os._exit(0)


def _main_module() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    module.__dict__["__file__"] = NAME
    sys.modules["__main__"], sys.argv = module, [NAME]
    return module.__dict__


def _give_stdin(content: bytes) -> None:
    found = os.memfd_create("stdin")
    view = memoryview(content)
    while view:
        view = view[os.write(found, view) :]
    os.lseek(found, 0, os.SEEK_SET)
    os.dup2(found, 0)
    os.close(found)


def _compiled(source: bytes, mode: str) -> types.CodeType:
    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[NAME] = (len(source), None, lines, NAME)
    code: types.CodeType = compile(source, NAME, mode, dont_inherit=True)
    return code


def _run_cell(source: bytes, main: dict[str, Any]) -> None:
    """Run statements; the value of an expression at their end is written."""
    _compiled(source, "exec")  # its errors show lines
    tree = ast.parse(source, NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NAME, "exec", dont_inherit=True), main)  # noqa: S102 - confined by now
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), NAME, "eval", dont_inherit=True), main)  # noqa: S307
        if value is not None:
            sys.stdout.write(f"{value!r}\n")


def _ended(run: Callable[[], object]) -> int:
    """The exit code of ``run``, after what an interpreter does at its end: threads, exit functions, output."""
    code = _shown(run)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code if _flush() else 120


def _shown(run: Callable[[], object]) -> int:
    """Run; what is raised is written to standard error, with the lines of the program alone."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever it raises is shown
        shown = error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename == __file__:
            shown = shown.tb_next
        traceback.print_exception(type(error), error, shown)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _flush() -> bool:
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            flushed = False  # closed or replaced by the program
    return flushed
