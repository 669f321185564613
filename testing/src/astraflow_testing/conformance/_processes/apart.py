"""Runs code of a plugin in a separate process, so that a test can report its hang or crash."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_LINE = b"\n"


class ProcessEnded(Exception):
    """The process ended, or was killed because nothing came in time: the text says which."""


def apart(work: Callable[[], Iterator[Any]], deadline_s: float) -> Iterator[Any]:
    """The JSON-like items that ``work`` yields in a fork of this process; raises :class:`ProcessEnded` if one item takes more
    than ``deadline_s`` or the process ends before its work. Code runs in the main thread there, as in a worker."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of threads: the child uses none of them
        child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    try:
        yield from _items(reading, child, deadline_s)
    finally:
        os.close(reading)
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it was waited for


def _work(work: Callable[[], Iterator[Any]], writing: int) -> NoReturn:
    """The life of the child; it never returns into the test."""
    status = 1
    # What is garbage of the parent may belong to threads that are not here.
    gc.freeze()
    try:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for item in work():
                pipe.write(json.dumps(["item", item]).encode() + _LINE)
            pipe.write(json.dumps(["end", None]).encode() + _LINE)
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here whatever it is
        traceback.print_exc()
    finally:
        os._exit(status)


def _items(reading: int, child: int, deadline_s: float) -> Iterator[Any]:
    kept = b""
    until = time.monotonic() + deadline_s
    while True:
        while _LINE in kept:
            line, _, kept = kept.partition(_LINE)
            kind, item = json.loads(line)
            if kind == "end":
                return
            yield item
            until = time.monotonic() + deadline_s
        if not select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
            raise ProcessEnded(f"gave no answer within {deadline_s:g} s")
        if not (more := os.read(reading, 1 << 16)):
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            raise ProcessEnded(f"ended its process with exit code {code}")
        kept += more
