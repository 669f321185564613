"""The program that a launcher runs on each host: starts processes there, watches them and sends back their output.

It needs Python 3.8 and its standard library only, as one file, because a launcher sends it to hosts where nothing
of AstraFlow is imported. It exchanges lines of JSON with one launcher over a byte stream, and may be reached again after
the stream has broken: output waits in files. It ends its processes, and itself, if the launcher is silent for too long.

``agent.py attach ID SILENCE_S`` joins standard input and output with the agent of that id, which it starts if there
is none. ``agent.py dial FILE`` connects to the launcher that FILE describes. ``agent.py become PARENT COMMAND …`` is
what starts a process.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import fcntl
import json
import math
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LONGEST_LINE = 1 << 24
"""Bytes of a message, at most."""
CHUNK = 1 << 18
"""Bytes of output in one message."""
TICK_S = 0.05
STATES_EVERY_S = 1.0
GRACE_S = 30.0
"""How long processes may clean up when the host asks the agent to exit (SIGTERM)."""
START_S = 10.0
HOLE = 1 << 20
"""Bytes of delivered output from which their disk space is freed."""


class HostProcess:
    """One start of a process. ``key`` is unique; its output stays in ``spool`` until the launcher has received it."""

    def __init__(self, key: str, spool: Path, process: subprocess.Popen[bytes]) -> None:
        self.key, self.spool, self.process = key, spool, process
        self.exit_code: int | None = None
        self.cpu_s, self.stopped = 0.0, False
        self.sent = self.arrived = self.freed = 0
        self.kill_at: float | None = None
        self.told: Any = None

    def look(self, now: float) -> None:
        """Check whether it ended, how much CPU time it used, and kill it if its deadline passed."""
        if self.exit_code is not None:
            return
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if pid:
            self.exit_code = _exit_code(status)
            self.process.returncode = self.exit_code
            self.cpu_s, self.stopped = usage.ru_utime + usage.ru_stime, False
            self.kill()
        elif self.kill_at is not None and now >= self.kill_at:
            self.kill()
        else:
            self._look_at_proc()

    def _look_at_proc(self) -> None:
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:  # no Linux, or it has just ended
            return
        fields = text.rpartition(")")[2].split()
        self.stopped = fields[0] in ("T", "t")
        self.cpu_s = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """SIGKILL to its process group."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def ask(self, deadline_s: float) -> None:
        """SIGTERM, after SIGCONT; SIGKILL at the deadline."""
        if self.exit_code is None:
            self.kill_at = time.monotonic() + deadline_s
            for number in (signal.SIGCONT, signal.SIGTERM):
                os.kill(self.process.pid, number)

    @property
    def drained(self) -> bool:
        """Whether all its output has been sent."""
        return self.sent >= self.spool.stat().st_size

    def state(self) -> dict[str, Any]:
        """The state that the launcher receives."""
        ended = self.exit_code is not None
        return {
            "key": self.key,
            "pid": self.process.pid,
            "exit_code": self.exit_code if ended and self.drained else None,
            "cpu_s": round(self.cpu_s, 3),
            "stopped": self.stopped,
        }


class HostAgent:
    """The processes of one launcher on this host, and the connection to it, if there is one."""

    def __init__(self, folder: Path, silence_s: float, parent: int = 0) -> None:
        self.folder, self.silence_s, self.parent = folder, silence_s, parent
        # Once this process is gone, services of this host remove the folder (`astraflow_wire.host.private_folder`).
        lock = os.open(folder / "lock.new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / "lock.new", folder / "lock")
        self.children: dict[str, HostProcess] = {}
        self.writer: asyncio.StreamWriter | None = None
        self.heard = self.told = time.monotonic()
        self.over = asyncio.Event()
        self.leaving = False

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the launcher over a new connection, which replaces an older one."""
        if self.writer is not None:
            self.writer.close()
        self.writer, self.heard = writer, time.monotonic()
        for child in self.children.values():
            child.sent, child.told = child.arrived, None
        own = writer.get_extra_info("sockname")
        self.say({"hello": facts(own[0] if isinstance(own, tuple) else "")})
        try:
            while line := await reader.readline():
                self.heard = time.monotonic()
                self.obey(json.loads(line))
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass  # the launcher connects again, or is silent for too long
        finally:
            self.writer = None if self.writer is writer else self.writer
            writer.close()

    def say(self, words: dict[str, Any]) -> None:
        """Send a message, if the launcher is connected."""
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(json.dumps(words).encode() + b"\n")

    def obey(self, words: dict[str, Any]) -> None:
        """Execute a command of the launcher, and reply if it expects a reply."""
        answer: dict[str, Any] = {"answer": words.get("id")}
        try:
            answer["result"] = getattr(self, "do_" + str(words["do"]))(words)
        except OSError as error:
            answer["error"] = f"{error.strerror or error} ({error.filename})"
        if words.get("id") is not None:
            self.say(answer)

    def do_ping(self, words: dict[str, Any]) -> None:
        """The launcher is alive."""

    def do_look(self, words: dict[str, Any]) -> bool:
        """Whether a path exists."""
        return os.path.exists(words["path"])

    def do_write(self, words: dict[str, Any]) -> None:
        """Write a small file that only this user can read; it must not exist."""
        os.makedirs(os.path.dirname(words["path"]), mode=0o700, exist_ok=True)
        file = os.open(words["path"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as out:
            out.write(words["text"])

    def do_start(self, words: dict[str, Any]) -> None:
        """Start a process; repeating the same start does nothing."""
        key, cwd = words["key"], words.get("cwd")
        if key in self.children:
            return
        spool = self.folder / f"{len(self.children)}.out"
        environment = {**os.environ, **words["environment"], "ASTRAFLOW_LAUNCHER": str(os.getpid())}
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "become"]
        with spool.open("ab") as output:
            process = subprocess.Popen(
                [*command, str(os.getpid()), *words["argv"]],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=cwd, start_new_session=True,
            )  # fmt: skip
        self.children[key] = HostProcess(key, spool, process)
        self.tick()

    def do_stop(self, words: dict[str, Any]) -> None:
        """Ask a process to end."""
        if words["key"] in self.children:
            self.children[words["key"]].ask(words["deadline_s"])

    def do_arrived(self, words: dict[str, Any]) -> None:
        """The launcher has received the output of a process up to an offset."""
        child = self.children.get(words["key"])
        if child is None:
            return
        child.arrived = words["offset"]
        child.sent = max(child.sent, child.arrived)
        if child.arrived - child.freed >= HOLE:
            child.freed = _give_back(child.spool, child.arrived)

    def do_flush(self, words: dict[str, Any]) -> None:
        """Send all existing output before the reply."""
        if words["key"] in self.children:
            self.send_output(self.children[words["key"]], math.inf)

    def do_close(self, words: dict[str, Any]) -> None:
        """Kill all processes, and exit."""
        self.end_all()
        self.over.set()

    def end_all(self) -> None:
        """Kill all processes and wait for their end."""
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            while child.exit_code is None:
                child.look(0.0)
                time.sleep(0.001)

    def leave(self) -> None:
        """The host is being reclaimed: let processes clean up, then exit."""
        self.leaving = True
        self.say({"leaving": GRACE_S})
        for child in self.children.values():
            child.ask(GRACE_S)

    def send_output(self, child: HostProcess, most: float) -> None:
        """Send output from where the last message ended, ``most`` bytes of it."""
        with child.spool.open("rb") as file:
            file.seek(child.sent)
            while most > 0 and self.writer is not None and (data := file.read(CHUNK)):
                text = base64.b64encode(data).decode()
                self.say({"output": child.key, "offset": child.sent, "data": text})
                child.sent += len(data)
                most -= len(data)

    def tick(self) -> None:
        """Look at the processes and report changes."""
        now, states = time.monotonic(), []
        waiting = 0 if self.writer is None else self.writer.transport.get_write_buffer_size()
        for child in self.children.values():
            child.look(now)
            if self.writer is not None and waiting < CHUNK and not child.drained:
                self.send_output(child, CHUNK)
            state = child.state()
            seen = (state["exit_code"], state["stopped"])
            if child.told != seen or (seen[0] is None and now - self.told >= STATES_EVERY_S):
                states.append(state)
                child.told = seen if self.writer is not None else None
        if states or now - self.told >= STATES_EVERY_S:
            self.told = now
            self.say({"states": states})

    async def watch(self) -> None:
        """Run until the launcher closes, is silent for too long, or the host is reclaimed."""
        while not self.over.is_set():
            self.tick()
            alive = any(child.exit_code is None for child in self.children.values())
            orphan = self.parent and os.getppid() != self.parent
            if self.leaving and not alive:
                await asyncio.sleep(4 * TICK_S)  # for the last words
                self.tick()
                break
            if orphan or time.monotonic() - self.heard > self.silence_s:
                break
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            stood_still = time.monotonic() - before - TICK_S
            if stood_still > 1.0:  # this process was stopped: words may wait to be read
                self.heard += stood_still
        self.end_all()
        if self.writer is not None:
            self.writer.close()
        shutil.rmtree(self.folder, ignore_errors=True)


# --- how it is reached -------------------------------------------------------------------------


async def serve(folder: Path, silence_s: float) -> None:
    """Listen on a socket in ``folder``, which only this user can open."""
    agent = HostAgent(folder, silence_s)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.leave)
    path = folder / "socket"
    server = await asyncio.start_unix_server(agent.converse, str(path) + ".new", limit=LONGEST_LINE)
    os.rename(str(path) + ".new", path)
    await agent.watch()
    server.close()


async def dial(description: dict[str, Any]) -> None:
    """Connect to the launcher, and reconnect until it is silent for too long."""
    folder = Path(tempfile.mkdtemp(prefix="astraflow-"))
    agent = HostAgent(folder, description["silence_s"], os.getppid())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.leave)
    watching = asyncio.ensure_future(agent.watch())
    context = ssl.create_default_context(cadata=description["certificate"])
    host, port = description["address"]
    while not watching.done():
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(
                    host, port, ssl=context, server_hostname="launcher", limit=LONGEST_LINE
                ),
                START_S,
            )
        except (OSError, asyncio.TimeoutError) as error:  # noqa: UP041 (another class before 3.11)
            sys.stderr.write(f"astraflow: no launcher at {host}:{port}: {error}\n")
        else:
            known = {key: description[key] for key in ("secret", "agent")}
            writer.write(json.dumps(known).encode() + b"\n")
            talking = asyncio.ensure_future(agent.converse(reader, writer))
            await asyncio.wait({talking, watching}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({watching}, timeout=0.5)


def attach(name: str, silence_s: str, source: bytes) -> None:
    """Join standard input and output with the agent ``name`` of this host; start it if there is none."""
    folder = Path(tempfile.gettempdir()) / f"astraflow-{name}"
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
            sys.exit(f"astraflow: {folder} belongs to another user")
    else:
        program = folder / "agent.py"
        program.write_bytes(source)
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), "serve", str(folder), silence_s],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(folder / "errors").open("wb"), start_new_session=True,
            cwd="/",
        )  # fmt: skip
    connection = _connected(folder)
    reading = os.fork()
    if reading == 0:  # the child forwards messages of the launcher, this process those to it
        _carry(lambda: os.read(0, CHUNK), connection.sendall)
        connection.shutdown(socket.SHUT_RDWR)
        os._exit(0)
    _carry(lambda: connection.recv(CHUNK), lambda data: os.write(1, data))
    os.kill(reading, signal.SIGKILL)


def _connected(folder: Path) -> socket.socket:
    end = time.monotonic() + START_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(folder / "socket"))
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > end:
                said = (folder / "errors").read_text() if (folder / "errors").exists() else ""
                shutil.rmtree(folder, ignore_errors=True)
                sys.exit(f"astraflow: the agent on this host does not answer\n{said[-2000:]}")
            time.sleep(0.02)


def _carry(read: Any, write: Any) -> None:
    try:
        while data := read():
            while data and (count := write(data)) is not None:
                data = data[count:]
    except OSError:
        return


def become(parent: int, command: list[str]) -> None:
    """Become ``command``, and be killed by the kernel when the agent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the agent exited while it started this process")
    try:
        os.execvp(command[0], command)  # noqa: S606 (what this is for)
    except OSError as error:
        sys.stderr.write(f"astraflow: cannot start {command[0]!r}: {error.strerror}\n")
        sys.exit(2)


# --- what the host is --------------------------------------------------------------------------


def facts(address: str) -> dict[str, Any]:
    """The facts that a launcher needs about this host. ``gpus`` are values of CUDA_VISIBLE_DEVICES, ``visible_gpus`` those
    that a scheduler has set; ``address`` is where the launcher reached it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _first_line("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cpus = min(cpus, math.ceil(int(quota[0]) / int(quota[1])))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _first_line("/sys/fs/cgroup/memory.max")
    if limit.isdigit():
        memory = min(memory, int(limit))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = Path("/proc/driver/nvidia/gpus")
    count = len(list(there.iterdir())) if there.is_dir() else 0
    gpus = [str(index) for index in range(count)] if visible is None else visible.split(",")
    return {
        "host": socket.gethostname(),
        "address": address or (os.environ.get("SSH_CONNECTION", "").split() + [""] * 3)[2],
        "cpus": max(1, cpus),
        "memory_gb": round(memory / 1e9, 3),
        "gpus": [gpu for gpu in gpus if gpu] if count else [],
        "visible_gpus": [gpu for gpu in (visible or "").split(",") if gpu],
        "pid": os.getpid(),
    }


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _exit_code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _give_back(spool: Path, offset: int) -> int:
    """Free the disk blocks of output that arrived; offsets stay. Returns how far."""
    if sys.platform == "linux":
        with spool.open("r+b") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate(file.fileno(), 3, ctypes.c_long(0), ctypes.c_long(offset))
    return offset


def main(arguments: list[str], source: bytes) -> None:
    """The command line."""
    if arguments[0] == "become":
        become(int(arguments[1]), arguments[2:])
    elif arguments[0] == "serve":
        asyncio.run(serve(Path(arguments[1]), float(arguments[2])))
    elif arguments[0] == "attach":
        attach(arguments[1], arguments[2], source)
    elif arguments[0] == "dial":
        asyncio.run(dial(json.loads(Path(arguments[1]).read_text())))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:], globals().get("SOURCE", b""))
