"""Imports the module of an agent once, then forks a process for each episode.

Started as a file by any Python, so that an agent may have its own interpreter: it needs only the standard
library. ``python zygote.py SOCKET MODULE:FUNCTION`` listens on a Unix socket. For each connection a child reads one
line, the task as JSON, writes one line with its process id, plays, and writes one line with the result. If the function
cannot be imported, the reason is in the file ``SOCKET.failed``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

FAILED = ".failed"
"""What the name of the file with the reason ends in."""
LINES_OF_TRACE = 12
_NAMES_SHOWN = 20
_MOST_REASON = 1000
LOOK_EVERY_S = 1.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class AgentTask:
    """What an agent is called with.

    ``data`` is that of the prompt. ``base_url`` and ``api_key`` are for a client of OpenAI's protocol; the key is that
    of this episode and ends with it. ``models`` names the policies and frozen engines of the run.
    """

    id: str
    data: dict[str, Any]
    base_url: str
    api_key: str = field(repr=False)
    models: list[str]


def main(address: str, target: str) -> None:
    """Serve until the parent process exits."""
    ours = os.path.dirname(os.path.realpath(__file__))
    others = [folder for folder in sys.path if os.path.realpath(folder) != ours]
    sys.path[:] = [os.getcwd(), *others]
    module, _, name = target.partition(":")
    try:
        imported = importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - a module may raise SystemExit, too
        sys.stderr.write(traceback.format_exc(-LINES_OF_TRACE))
        _fail(address, why_not_imported(module, error))
    agent = getattr(imported, name, None)
    if not callable(agent):
        _fail(address, why_not_called(imported, module, name))
    if threading.active_count() > 1:
        names = ", ".join(each.name for each in threading.enumerate()[1:])
        sys.stderr.write(
            f"{module} started threads when imported ({names}); episodes do not have them\n"
        )
    parent = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{address}.new")
        listening.listen(1024)
        os.rename(f"{address}.new", address)
        while os.getppid() == parent:
            if select.select([listening], [], [], LOOK_EVERY_S)[0]:
                connection, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    play(agent, connection)
                connection.close()


def _fail(address: str, reason: str) -> NoReturn:
    with open(f"{address}{FAILED}", "w", encoding="utf-8") as file:
        file.write(reason[:_MOST_REASON])
    raise SystemExit(3)


def why_not_imported(module: str, error: BaseException) -> str:
    """The last line of the trace, where in the agent's code that was, and what to do where that is known."""
    last = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, ModuleNotFoundError) and error.name:
        if f"{module}.".startswith(f"{error.name}."):
            return f"{last} ([workflow] folder is the folder of the module)"
        return (
            f"{last}{_source_location(error)}; {sys.executable} does not have it: install it there, or name an interpreter that has it "
            "by [workflow] python"
        )
    return f"{last}{_source_location(error)}"


def _source_location(error: BaseException) -> str:
    """Where the innermost code stands that is no part of the machinery of imports."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
        and os.path.basename(frame.filename) != "zygote.py"
        and frame.filename != importlib.__file__
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def why_not_called(imported: Any, module: str, name: str) -> str:
    """Which functions the module has instead."""
    if hasattr(imported, name):
        return (
            f"{name!r} of {module} is {type(getattr(imported, name)).__name__}; expected a function"
        )
    own = [
        each
        for each, value in vars(imported).items()
        if callable(value) and getattr(value, "__module__", "") == imported.__name__
    ]
    more = ", …" if len(own) > _NAMES_SHOWN else ""
    has = ", ".join(own[:_NAMES_SHOWN]) + more
    return f"{module} has no function {name!r}; it has: {has or 'none of its own'}"


def play(agent: Any, connection: socket.socket) -> None:
    """One episode, in a separate process that ends with it."""
    code, zygote = 1, os.getppid()
    try:
        os.setsid()
        _end_with(zygote)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with connection.makefile("rwb") as stream:
            task = AgentTask(**json.loads(stream.readline()))
            os.environ.update(variables(task.base_url, task.api_key))
            stream.write(json.dumps({"pid": os.getpid()}).encode() + b"\n")
            stream.flush()
            stream.write(json.dumps(result(agent, task)).encode() + b"\n")
        code = 0
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def result(agent: Any, task: AgentTask) -> dict[str, Any]:
    """``{"returned": …}``, or ``{"error": …}`` with the end of the trace."""
    try:
        returned = agent(task)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        json.dumps(returned)
    except BaseException:  # noqa: BLE001 - nothing that an agent raises ends another
        return {"error": traceback.format_exc(-LINES_OF_TRACE)}
    return {"returned": returned}


async def _awaited(given: Any) -> Any:
    return await given


def variables(base_url: str, api_key: str) -> dict[str, str]:
    """The environment by which the clients of OpenAI and Anthropic find the gateway."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": api_key,
        "ASTRAFLOW_EPISODE": api_key,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
