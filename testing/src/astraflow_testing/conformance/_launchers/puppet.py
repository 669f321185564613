"""``python _puppet.py HOST PORT NAME ARGUMENT…``: a process that connects, identifies itself and obeys commands.

Whoever listens sees its end at once, whatever host it is on, since its connection ends with it; and it ends when they
hang up. Only the standard library is needed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

DEADLINE_S = 30.0


def command(host: str, port: int, name: str, *arguments: str) -> tuple[str, ...]:
    """The command line of a puppet."""
    return (
        sys.executable,
        "-S",
        "-E",
        str(Path(__file__).resolve()),
        host,
        str(port),
        name,
        *arguments,
    )


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _complain(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _child() -> None:
    host, port, name = sys.argv[1:4]
    subprocess.Popen(command(host, int(port), f"child of {name}"), stdin=subprocess.DEVNULL)


def _obey(code: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))


def _command_lines() -> list[str]:
    """Of this process and of all above it that one may look at."""
    found, pid = [], os.getpid()
    while pid > 1 and (place := Path(f"/proc/{pid}")).is_dir():
        found.append((place / "cmdline").read_bytes().decode(errors="replace"))
        pid = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _burn(seconds: float) -> None:
    while sum(os.times()[:2]) < seconds:
        continue


COMMANDS: dict[str, Callable[..., Any]] = {
    "write": _write,
    "write bytes": lambda digits: os.write(1, bytes.fromhex(digits)),
    "complain": _complain,
    "leave": os._exit,
    "signal yourself": lambda number: os.kill(os.getpid(), number),
    "be deaf": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None,
    "obey": _obey,
    "have a child": _child,
    "environment": os.environ.get,
    "command lines": _command_lines,
    "use the CPU": _burn,
}


def _send(talk: TextIO, words: object) -> None:
    talk.write(json.dumps(words) + "\n")
    talk.flush()


def main() -> None:
    """Connect, identify this process, and obey commands."""
    host, port, name, *arguments = sys.argv[1:]
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        connection.settimeout(None)
        talk = connection.makefile("rw", encoding="utf-8")
        mine = {"pid": os.getpid(), "session": os.getsid(0), "host": socket.gethostname()}
        _send(talk, {"name": name, "arguments": arguments, **mine})
        for line in talk:
            what, *given = json.loads(line)
            _send(talk, COMMANDS[what](*given))


if __name__ == "__main__":
    main()
