"""Commands and runs whose processes are forked, so that a test does not pay for their imports.

To import what it needs costs each process of a run a second or two, more than the few steps of a test. A server imports it all
once. ``python -m MODULE`` of :data:`MODULES` is then a fork of it that runs the module, and so is each that this starts:
a separate process, with its own files, environment, session and parent, its own lines in ``/proc``, that is killed by signals as
any other. All other programs are started normally. Linux only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import importlib.metadata
import inspect
import json
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import asdict
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NoReturn

from astraflow_core.component import Component
from astraflow_runtime.forking.becoming import (
    ROOM,
    ROOM_VARIABLE,
    ModuleProcess,
    become,
    is_noted,
    note_what_is_imported,
)
from astraflow_runtime.forking.client import CHOICE, OWN
from astraflow_runtime.forking.server import MOST_BYTES, serve
from astraflow_testing.runs import User
from astraflow_wire.host.parent import adopting_orphans

HOST = "astraflow_engine_host.main"
MODULES = (
    "astraflow_runtime",
    HOST,
    "astraflow_runtime.preflight.trainer_process",
    "astraflow_runtime.raas.rewards.worker",
    "astraflow_trackers.host",
    "torch.distributed.run",
)
PACKAGES = ("astraflow_runtime", "astraflow_engine_host", "astraflow_weights")
"""All modules of these are imported, with the manifests of plugins."""
IMPORTED = (
    "_statistics",
    "aiohttp",
    "astraflow_testing.table",
    "numpy.random",
    "pydantic.v1",
    "re2",
    "rich.console",
    "rich.table",
    "uvicorn.protocols.http.auto",
)
COMPONENTS = {"digits", "exact", "http", "single_turn", "three_zones"}
"""What the runs of tests import in addition: modules, and components of whichever plugins."""
HEAVY = "heavy"
HEAVY_IMPORTED = ("reasoning_gym", "torch._dynamo", "torch.distributed.run")
HEAVY_COMPONENTS = {"grpo", "torch"}
"""What runs with torch, or with tasks of reasoning_gym, import: eleven CPU seconds. It starts no thread, and no operation of
torch has run before a fork."""
HOSTS = "hosts"
"""A kind of server, which imports :data:`HOST` alone: it costs no more than one that is started."""
COMMAND = "command"
START_S = 180.0
"""For all imports, on a machine with much other work too."""

IDLE_THREADS = {"MainThread", "end-with-parent", "loop-watchdog", "presence"}
"""The one that forks, and those that sleep, without any lock."""
_WAITING = (
    concurrent.futures.thread._worker.__code__,
    asyncio.ThreadedChildWatcher._do_waitpid.__code__,  # type: ignore[attr-defined]
)

_exec = subprocess._fork_exec  # type: ignore[attr-defined]


def wanted(arguments: Sequence[Any], how: Sequence[Any]) -> ModuleProcess | None:
    """The arguments of ``subprocess._fork_exec``; None if that is no module to be forked."""
    words = [os.fsdecode(word) for word in arguments]
    shim = len(words) > 5 and words[1:3] == ["-I", "-S"] and Path(words[3]).name == "shim.py"
    words = words[5:] if shim else words
    if words[:2] != [sys.executable, "-m"] or words[2] not in MODULES:
        return None
    environment = dict(os.environ)
    if how[4] is not None:
        pairs = (os.fsdecode(pair).partition("=") for pair in how[4])
        environment = {name: value for name, _, value in pairs}
    directory = os.getcwd() if how[3] is None else os.fsdecode(how[3])
    return ModuleProcess(words, directory, environment, bool(how[14]), shim)


def fork_or_exec(arguments: Sequence[Any], *how: Any) -> int:
    """``subprocess._fork_exec`` of a process that has imported everything."""
    asked = wanted(arguments, how)
    if asked is None or _has_loaded_extensions() or has_working_threads():
        return int(_exec(arguments, *how))
    pid = os.fork()
    if pid == 0:
        kept = [fd for fd in how[2] if fd != how[12]]
        become(asked, streams=(how[5], how[8], how[10]), kept=kept)
    return pid


def _has_loaded_extensions() -> bool:
    """Whether this fork has imported a module in C that the server has not, such as torch: it would be imported once more
    by a fork of this one, and few such modules can be."""
    own = (module for name, module in list(sys.modules.items()) if not is_noted(name))
    origins = (getattr(getattr(module, "__spec__", None), "origin", None) for module in own)
    return any(str(origin).endswith(tuple(EXTENSION_SUFFIXES)) for origin in origins)


def has_working_threads() -> bool:
    """Whether another thread may hold a lock, which would never be released in a fork: modules in C have such locks too."""
    frames = sys._current_frames()
    own = (thread for thread in threading.enumerate() if thread.name not in IDLE_THREADS)
    codes = (getattr(frames.get(thread.ident or 0), "f_code", None) for thread in own)
    return any(code not in _WAITING for code in codes)


class RunForkServer:
    """A server, as its parent sees it."""

    def __init__(self, *kind: str) -> None:
        """``kind``: nothing, :data:`HEAVY`, or :data:`HOSTS`."""
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(START_S)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), ROOM, *kind],
                pass_fds=[theirs.fileno()],
                env={**environment, ROOM_VARIABLE: ROOM},
            )

    @contextlib.contextmanager
    def forking(self) -> Iterator[None]:
        """Meanwhile ``subprocess`` starts modules as forks, which are children of this process as usual."""
        subprocess._fork_exec = self._fork_exec  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess._fork_exec = _exec  # type: ignore[attr-defined]

    def _fork_exec(self, arguments: Sequence[Any], *how: Any) -> int:
        asked = wanted(arguments, how)
        if asked is None or len(how[2]) > 1:  # with descriptors other than that for errors of exec
            return int(_exec(arguments, *how))
        streams = [fd for fd in (how[5], how[8], how[10]) if fd >= 0]
        given = [fd >= 0 for fd in (how[5], how[8], how[10])]
        message = json.dumps({"given": given, **asdict(asked)}).encode()
        with self._lock, adopting_orphans():
            socket.send_fds(self._channel, [message], streams)
            return int(self._channel.recv(MOST_BYTES))

    def close(self) -> None:
        """The server ends; its forks do not."""
        self._channel.close()
        self._process.wait(START_S)


class ForkedUser(User):
    """A user whose commands, and the processes of whose runs, are forked."""

    def __init__(self, directory: Path, forks: RunForkServer) -> None:
        super().__init__(directory)
        self.environment[CHOICE] = OWN  # all is imported already
        self._forks = forks

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start `astraflow ARGUMENTS`."""
        with self._forks.forking():
            return super().start(*arguments)


def _import_everything(heavy: bool) -> None:
    components = COMPONENTS | HEAVY_COMPONENTS if heavy else COMPONENTS
    for package in map(importlib.import_module, PACKAGES):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    for point in importlib.metadata.entry_points(group="astraflow"):
        manifest = importlib.import_module(point.module)
        for name, hook in vars(manifest).items():
            if name.startswith("astraflow_") and inspect.isfunction(hook):
                _import_components(hook, components)
    for name in IMPORTED + (HEAVY_IMPORTED if heavy else ()):
        importlib.import_module(name)


def _import_components(hook: Callable[..., Any], names: Set[str]) -> None:
    if inspect.signature(hook).parameters:
        return
    for component in hook():
        if isinstance(component, Component) and component.name in names:
            importlib.import_module(component.target.partition(":")[0])


def main() -> NoReturn:
    """``python -m astraflow_testing.forked_runs DESCRIPTOR ROOM [heavy | hosts]`` is a server; with ``command`` for the descriptor, and
    arguments of `astraflow` after the room, it is that command."""
    if sys.argv[1] == COMMAND:
        be_the_command()
    import_and_fork(*sys.argv[3:])
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit()


def write_command(folder: Path) -> None:
    """Write the program `astraflow` into ``folder``, for the ``PATH`` of a shell: the services of its runs are forks of it, and
    all else is the installed program."""
    program = folder / "astraflow"
    program.write_text(f"""#!/bin/sh
if test "$1" = run; then
    export {CHOICE}={OWN} {ROOM_VARIABLE}={ROOM}
    exec "{sys.executable}" -m {__name__} {COMMAND} {ROOM} "$@"
fi
exec "{Path(sys.executable).parent}/astraflow" "$@"
""")
    program.chmod(0o755)


def be_the_command() -> NoReturn:
    """Import what a run needs, and be `astraflow`."""
    del os.environ[ROOM_VARIABLE]
    commands = Path(sys.executable).parent
    sys.path[0] = str(commands)  # as for an installed program
    import_and_fork()
    sys.argv = [str(commands / "astraflow"), *sys.argv[3:]]
    sys.exit(importlib.import_module("astraflow_runtime.cli").main())


def import_and_fork(kind: str = "") -> None:
    """Import all that runs, or the others of a kind, need; ``subprocess`` then forks this process where it can."""
    if kind == HOSTS:
        importlib.import_module(HOST)
    else:
        _import_everything(kind == HEAVY)
    note_what_is_imported()
    subprocess._fork_exec = fork_or_exec  # type: ignore[attr-defined]


if __name__ == "__main__":
    from astraflow_testing.forked_runs import main as main_of_the_module

    main_of_the_module()
