"""The process that checks of answers are forked from: ``python -m astraflow_contrib_math_verify.fork_server FD PARENT``.

It imports math-verify once and reads a few formulas, so that each worker starts with what it parses by. For each
descriptor that comes over FD it forks a worker, which answers over that one.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import struct
import sys
from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from astraflow_wire.host.parent import signal_at_parent_death
from astraflow_wire.host.worker_channel import read_message

READY, BEGUN, READ, LONG, RIGHT, WRONG, UNREADABLE = b"R", b"B", b"G", b"L", b"1", b"0", b"U"
LIMIT = struct.Struct("<I")
_EXPECTED_CPU_S = 5.0
"""CPU time for reading the expected answer, which is the user's data."""
_LONG_CPU_S, _LOW_PRIORITY = 0.02, 10
"""A check that takes more says so, and leaves the processor to others."""
_FORMULAS = (
    r"\frac{1}{2}", r"\{1,2\}", r"3\sqrt{2}", "(x+1)^2", r"50\%", "x=5", r"\frac{\pi}{2}", "x^2+2x+1", r"\pi/3",
    r"\frac{1}{2}+3", "2x+3y-4", "x+x+3", r"\left(\frac{1}{2},-\sqrt{3}\right)", "[1,2)", r"1\le x<3", "-2.5", r"x^{-1}", r"\sin(x)",
    r"\log_2 8", r"10^3", r"\text{no}", "A", r"5\text{ cm}", r"(-\infty,3]\cup[4,\infty)", r"\sqrt[3]{2}", r"\binom{5}{2}", "e^{2x}", "3!",
    r"2\cdot 3^{n}", r"\begin{pmatrix}1&2\end{pmatrix}", "f(x)=x+1", r"y=\frac{x-1}{2}", r"30^\circ", "3+2i", r"\frac{a+b}{c}", "|x-1|",
)  # fmt: skip
"""Read and compared before workers are forked: what a grammar's rules and comparisons take the first time is paid once."""


class CheckRequest(msgspec.Struct, frozen=True, array_like=True):
    """An expected answer, the text that is to say the same, and the CPU seconds for that."""

    expected: str
    given: str
    cpu_s: float


@lru_cache(256)
def parsed(expected: str) -> Any:
    """The expected answer as math-verify reads it; bare LaTeX is read as a whole."""
    from math_verify import parse

    text = expected if "\\boxed" in expected or "$" in expected else f"\\boxed{{{expected}}}"
    return parse(text, parsing_timeout=None)


def equal(expected: Any, given: str) -> bool:
    """Whether a text says the same. The time is bounded from outside."""
    from math_verify import parse, verify

    return bool(verify(expected, parse(given, parsing_timeout=None), timeout_seconds=None))


def prepare() -> None:
    """Import and read what every worker needs."""
    logging.disable(logging.WARNING)
    for formula in _FORMULAS:
        equal(parsed(formula), f"\\boxed{{{formula}}}")
        equal(parsed("7"), f"\\boxed{{{formula}}}")
    gc.collect()
    gc.freeze()


def answer(connection: socket.socket) -> None:
    """Check answers until the other end is closed, or one took long. An answer that takes too long ends the process: SIGPROF stops native code, too, which an exception would not."""
    takes_long = False

    def tell(*_: object) -> None:
        nonlocal takes_long
        takes_long = True
        os.nice(_LOW_PRIORITY)
        connection.sendall(LONG)

    signal.signal(signal.SIGVTALRM, tell)
    connection.sendall(READY)
    while not takes_long and (body := read_message(connection)):
        connection.sendall(BEGUN)
        request = msgspec.msgpack.decode(body, type=CheckRequest)
        signal.setitimer(signal.ITIMER_VIRTUAL, _LONG_CPU_S)
        signal.setitimer(signal.ITIMER_PROF, _EXPECTED_CPU_S)
        expected = parsed(request.expected)
        connection.sendall(READ if expected else UNREADABLE)
        right = False
        if expected:
            signal.setitimer(signal.ITIMER_PROF, request.cpu_s)
            right = equal(expected, request.given)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if expected:
            connection.sendall(RIGHT if right else WRONG)


def _work(descriptor: int, server: int, memory_mb: int) -> NoReturn:
    code = 1
    try:
        signal_at_parent_death(signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        limit = _address_space() + (memory_mb << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with socket.socket(fileno=descriptor) as connection, contextlib.suppress(ConnectionError):
            answer(connection)
        code = 0
    finally:
        os._exit(code)


def _address_space() -> int:
    """Bytes of address space of this process; without ``/proc`` a guess."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30


def main() -> int:
    """The process's entry point."""
    requests, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    signal_at_parent_death(signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exit codes of workers are not needed
    while True:
        said, descriptors, _, _ = socket.recv_fds(requests, LIMIT.size, 1)
        if not descriptors:
            return 0
        server = os.getpid()
        if os.fork() == 0:
            requests.close()
            _work(descriptors[0], server, LIMIT.unpack(said)[0])
        os.close(descriptors[0])


if __name__ == "__main__":
    sys.exit(main())
