"""Commands and runs whose processes are forked, so that a test does not pay for their imports.

To import what it needs costs each process of a run a second or two, more than the few steps of a test. A server imports it all
once. ``python -m MODULE`` of :data:`MODULES` is then a fork of it that runs the module, and so is each that this starts: a
process of its own, with its own files, environment, session and parent, its own lines in ``/proc``, that dies of signals as any
other. All other programs are started as ever. Linux only.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import ctypes
import gc
import importlib.metadata
import inspect
import json
import logging
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NoReturn

from astraflow_core.component import Component
from astraflow_testing.runs import User

MODULES = (
    "astraflow_runtime",
    "astraflow_engine_host.main",
    "astraflow_runtime.preflight.trainer_process",
    "astraflow_runtime.raas.rewards.worker",
    "astraflow_trackers.host",
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
"""What the runs of tests import beside that: modules, and components of whichever plugins."""
HEAVY = "heavy"
HEAVY_IMPORTED = ("reasoning_gym", "torch._dynamo")
HEAVY_COMPONENTS = {"grpo", "torch"}
"""What runs with torch, or with tasks of reasoning_gym, import: eleven CPU seconds. It starts no thread, and no operation of
torch has run before a fork."""
COMMAND = "command"
START_S = 180.0
"""For all imports, on a machine with much other work too."""
_MOST_BYTES = 1 << 17
_PR_SET_CHILD_SUBREAPER = 36
ROOM_VARIABLE = "ASTRAFLOW_TEST_ROOM"
ROOM = "-" * 20_000
"""The server has this among its arguments and in its environment: room for those of its forks."""
_PR_SET_PDEATHSIG = 1

IDLE_THREADS = {"MainThread", "end-with-parent", "loop-watchdog", "presence"}
"""The one that forks, and those that sleep, without any lock."""
_WAITING = (
    concurrent.futures.thread._worker.__code__,
    asyncio.ThreadedChildWatcher._do_waitpid.__code__,  # type: ignore[attr-defined]
)

_imported: set[str] = set()
_path: list[str] = []
_kept: list[Any] = []
"""What is the parent's and must not be freed: that would close descriptors that are others here."""

_exec = subprocess._fork_exec  # type: ignore[attr-defined]


@dataclass(frozen=True)
class WantedProcess:
    """What ``subprocess`` asks for, as far as it matters here."""

    words: list[str]
    directory: str
    environment: dict[str, str]
    new_session: bool
    dies_with_parent: bool


def wanted(arguments: Sequence[Any], how: Sequence[Any]) -> WantedProcess | None:
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
    return WantedProcess(words, directory, environment, bool(how[14]), shim)


def fork_or_exec(arguments: Sequence[Any], *how: Any) -> int:
    """``subprocess._fork_exec`` of a process that has imported everything."""
    asked = wanted(arguments, how)
    if asked is None or _has_loaded_extensions() or has_working_threads():
        return int(_exec(arguments, *how))
    pid = os.fork()
    if pid == 0:
        kept = [fd for fd in how[2] if fd != how[12]]
        become(**asdict(asked), streams=(how[5], how[8], how[10]), kept=kept)
    return pid


def _has_loaded_extensions() -> bool:
    """Whether this fork has imported a module in C that the server has not, such as torch: it would be imported once more
    by a fork of this one, and few such modules can be."""
    own = (sys.modules[name] for name in sys.modules.keys() - _imported)
    origins = (getattr(getattr(module, "__spec__", None), "origin", None) for module in own)
    return any(str(origin).endswith(tuple(EXTENSION_SUFFIXES)) for origin in origins)


def has_working_threads() -> bool:
    """Whether another thread may hold a lock, which nobody would release in a fork: modules in C have such locks too."""
    frames = sys._current_frames()
    own = (thread for thread in threading.enumerate() if thread.name not in IDLE_THREADS)
    codes = (getattr(frames.get(thread.ident or 0), "f_code", None) for thread in own)
    return any(code not in _WAITING for code in codes)


class RunForkServer:
    """A server, as its parent sees it."""

    def __init__(self, *kind: str) -> None:
        """``kind``: nothing, or :data:`HEAVY`."""
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
        """Meanwhile ``subprocess`` starts modules as forks, which are children of this process as ever."""
        subprocess._fork_exec = self._fork_exec  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess._fork_exec = _exec  # type: ignore[attr-defined]

    def _fork_exec(self, arguments: Sequence[Any], *how: Any) -> int:
        asked = wanted(arguments, how)
        if asked is None or len(how[2]) > 1:  # with descriptors beside that for errors of exec
            return int(_exec(arguments, *how))
        streams = [fd for fd in (how[5], how[8], how[10]) if fd >= 0]
        given = [fd >= 0 for fd in (how[5], how[8], how[10])]
        message = json.dumps({"given": given, **asdict(asked)}).encode()
        with self._lock:
            _adopt(True)
            try:
                socket.send_fds(self._channel, [message], streams)
                return int(self._channel.recv(_MOST_BYTES))
            finally:
                _adopt(False)

    def close(self) -> None:
        """The server ends; its forks do not."""
        self._channel.close()
        self._process.wait(START_S)


class ForkedUser(User):
    """A user whose commands, and the processes of whose runs, are forked."""

    def __init__(self, directory: Path, forks: RunForkServer) -> None:
        super().__init__(directory)
        self._forks = forks

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start `astraflow ARGUMENTS`."""
        with self._forks.forking():
            return super().start(*arguments)


def _adopt(yes: bool) -> None:
    """Whether this process becomes the parent of orphans among its descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def serve(channel: socket.socket) -> None:
    """Fork what is asked for, until the other end is closed."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, _MOST_BYTES, 3)
        if not message:
            return
        asked = json.loads(message)
        left = iter(descriptors)
        streams = [next(left) if there else -1 for there in asked.pop("given")]
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            # Once this one ends, the nearest ancestor that adopts orphans is the parent.
            between = os.getpid()
            pid = os.fork()
            if pid == 0:
                while os.getppid() == between:
                    time.sleep(0.001)
                become(**asked, streams=streams, kept=[])
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        channel.send(os.read(reader, 32))
        for fd in (reader, writer, *descriptors):
            os.close(fd)


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
    """``python -m astraflow_testing.forked_runs DESCRIPTOR ROOM [heavy]`` is a server; with ``command`` for the descriptor, and
    arguments of `astraflow` after the room, it is that command."""
    if sys.argv[1] == COMMAND:
        be_the_command()
    import_and_fork(HEAVY in sys.argv[3:])
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit()


def write_command(folder: Path) -> None:
    """Write the program `astraflow` into ``folder``, for the ``PATH`` of a shell: the services of its runs are forks of it, and
    all else is the installed program."""
    program = folder / "astraflow"
    program.write_text(f"""#!/bin/sh
if test "$1" = run; then
    export {ROOM_VARIABLE}={ROOM}
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
    import_and_fork(False)
    sys.argv = [str(commands / "astraflow"), *sys.argv[3:]]
    sys.exit(importlib.import_module("astraflow_runtime.cli").main())


def import_and_fork(heavy: bool) -> None:
    """Import all that runs need; ``subprocess`` then forks this process where it can."""
    _import_everything(heavy)
    note_what_is_imported()
    subprocess._fork_exec = fork_or_exec  # type: ignore[attr-defined]


def note_what_is_imported() -> None:
    """Forks keep these modules, and no other that their parents import."""
    _imported.update(sys.modules)
    _path.extend(sys.path[1:])


def become(
    words: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
    new_session: bool,
    dies_with_parent: bool,
    streams: Sequence[int],
    kept: Sequence[int],
) -> NoReturn:
    """Run ``python -m MODULE …`` and exit, whatever happens."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        _tell_in_proc(words, environment)
        if dies_with_parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _reset_signals()
        _pass(streams, kept)
        os.chdir(directory)
        if new_session:
            os.setsid()
        _forget_the_parent()
        code = _run(words)
    except BaseException:  # noqa: BLE001 - nothing may return into what the parent was doing
        traceback.print_exc()
    finally:
        os._exit(code)


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


def _tell_in_proc(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """``/proc/self/cmdline`` and ``environ`` are the memory in which the kernel put those of the server."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, end_of_arguments, variables, end_of_variables = map(int, fields[45:49])
    pairs = [f"{name}={value}" for name, value in environment.items()]
    for texts, begin, end in (
        (words, arguments, end_of_arguments),
        (pairs, variables, end_of_variables),
    ):
        text = b"".join(os.fsencode(part) + b"\0" for part in texts)[: end - begin - 1]
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


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


if __name__ == "__main__":
    from astraflow_testing.forked_runs import main as main_of_the_module

    main_of_the_module()
