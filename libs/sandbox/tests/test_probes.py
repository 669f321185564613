"""Programs that try to escape, to stay, and to take more than their part."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import probes
import pytest

from astraflow_sandbox.code_runner import ProgramLimits, ProgramResult
from astraflow_sandbox.guest.seccomp import DENIED, machine_index
from astraflow_sandbox.subprocess_runner import SubprocessRunner, WarmRunner

LIMITS = ProgramLimits(cpu_s=1, deadline_s=120, memory_mb=256, disk_mb=16)
WITHOUT_NAMESPACES = ("namespaces", "files")
slow = pytest.mark.slow
OTHERS = (
    slow,
    pytest.mark.turns("libs/sandbox/src/**/*.py", "libs/sandbox/tests/probes.py"),
)
"""Marks of the runners that are not the one in use on most hosts."""


@pytest.fixture(
    scope="module",
    params=[
        "warm",
        pytest.param("cold", marks=OTHERS),
        pytest.param("without namespaces", marks=OTHERS),
        pytest.param("without Landlock", marks=OTHERS),
    ],
)
def runner(request: pytest.FixtureRequest) -> Iterator[SubprocessRunner]:
    if request.param == "cold":
        yield SubprocessRunner(LIMITS)
        return
    without = {
        "warm": (),
        "without namespaces": WITHOUT_NAMESPACES,
        "without Landlock": ("landlock",),
    }[request.param]
    warm = WarmRunner(LIMITS, at_once=1, without=without)
    yield warm
    warm.close()


@dataclass
class Host:
    """Files and processes of the host that programs must not change."""

    secret: Path
    process: subprocess.Popen[bytes]
    listener: socket.socket

    def filled(self, program: str) -> str:
        """``program``, with what it aims at."""
        port = self.listener.getsockname()[1]
        filled = program.replace("SECRET", str(self.secret)).replace("HOST", str(self.process.pid))
        return filled.replace("PORT", str(port))

    def is_whole(self) -> bool:
        """Whether all is as it was."""
        self.listener.settimeout(0)
        try:
            self.listener.accept()
        except BlockingIOError:
            return (
                self.secret.read_text() == "secret"
                and len(list(self.secret.parent.iterdir())) == 3
                and self.process.poll() is None
            )
        return False


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("host")
    secret = folder / "secret"
    secret.write_text("secret")
    script = folder / "secret.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    folder.chmod(0o755)
    process = subprocess.Popen(["sleep", "3600"])
    listener = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"{secret}.socket")
    unix.listen()
    with listener, unix:
        yield Host(secret, process, listener)
    process.kill()
    process.wait()


def run(runner: SubprocessRunner, program: str, stdin: str = "") -> ProgramResult:
    return asyncio.run(runner.run(program, stdin))


def is_held(result: ProgramResult) -> bool:
    """Whether it ended by an error, and the sandbox is what it was."""
    return result.code == 1 and result.ending == "exited" and "escaped" not in result.stdout


@pytest.mark.parametrize("name", [*probes.FILES, *probes.NETWORK, *probes.PROCESSES])
def test_what_is_not_its_own_stays_out_of_reach(
    runner: SubprocessRunner, host: Host, name: str
) -> None:
    program = {**probes.FILES, **probes.NETWORK, **probes.PROCESSES}[name]
    result = run(runner, f"{host.filled(program)}\nprint('escaped')")
    assert is_held(result), result
    assert any(word in result.stderr.splitlines()[-1] for word in ("Error", "gaierror")), result
    assert host.is_whole()


def test_system_calls_are_refused(runner: SubprocessRunner) -> None:
    index = machine_index()
    tried = [DENIED[name][index] for name in probes.CALLS]
    program = (
        f"{probes.CALL}\nfor number in {tried}:\n    try:\n        call(number, 0, 0, 0, 0, 0, 0)\n"
        "    except PermissionError:\n        continue\n    except OSError as error:\n        print(number, error)\n"
        "    else:\n        print(number, 'escaped')\n"
    )
    result = run(runner, program)
    assert result.succeeded and result.stdout == "", result
    # A namespace by clone, and calls that came after the filter was written.
    clone = "call(56 if os.uname().machine == 'x86_64' else 220, 0x10000000 | 17, 0, 0, 0, 0)"
    assert "PermissionError" in run(runner, f"{probes.CALL}\n{clone}").stderr
    assert "Errno 38" in run(runner, f"{probes.CALL}\ncall(435, 0, 0)").stderr
    assert "Errno 38" in run(runner, f"{probes.CALL}\ncall(499, 0, 0)").stderr


@pytest.mark.parametrize("name", probes.PAIRS)
def test_nothing_of_a_program_is_found_by_the_next(
    runner: SubprocessRunner, request: pytest.FixtureRequest, name: str
) -> None:
    if name == "daemon" and "without namespaces" in request.node.name:
        pytest.skip(
            "who is not alone finds somebody: the processes of the host, that it cannot reach"
        )
    leaves, looks = probes.PAIRS[name]
    assert run(runner, leaves, "left over").code == 0
    found = run(runner, looks)
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_a_signal_to_all_reaches_no_other_process(runner: SubprocessRunner, host: Host) -> None:
    program = "import os, signal\ntry:\n    os.kill(-1, 9)\nexcept OSError:\n    pass\nprint('up')"
    assert run(runner, program).ending == "exited" and host.is_whole()
    assert run(runner, "print('next')").stdout == "next\n"


def test_descriptors_of_the_sandbox_are_closed(runner: SubprocessRunner) -> None:
    """What is written there reaches no zygote, so that no result is forged."""
    program = (
        "import os\nfound = []\nfor each in range(3, 64):\n    try:\n        os.write(each, b'\\0' * 100)\n"
        "        found.append(each)\n    except OSError:\n        pass\nprint(found)"
    )
    assert run(runner, program).stdout == "[]\n"
    forged = '\0\0\0\x02\0\0\0\0{}{"code": 0, "ending": "exited", "out": 0}'
    result = run(runner, "import sys; print(sys.stdin.read(), end=''); sys.exit(7)", forged)
    assert (result.code, result.stdout) == (7, forged)


def test_a_program_sees_nothing_of_its_caller(
    runner: SubprocessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
    program = (
        "import os, sys, ctypes\nlibc = ctypes.CDLL(None)\n"
        "print(dict(os.environ), sys.argv, os.listdir('.'), os.getuid() != 0 or libc.prctl(23, 21), libc.prctl(39, 0, 0, 0, 0))\n"
        "print([name for name in sys.modules if 'astraflow' in name])"
    )
    result = run(runner, program)
    assert result.stdout.splitlines()[1] == "[]"
    known = result.stdout.splitlines()[0]
    assert known.startswith("{} ['main.py'] []") and known.endswith(" 1") and "secret" not in known


# --- exhaustion ---------------------------------------------------------------------------------

ENDS = {
    "memory": ("bytearray(1 << 40)", "exited", "MemoryError"),
    "file": ("open('big', 'wb').write(b'x' * (1 << 26))", "exited", "File too large"),
    "files": (
        "for n in range(64): open(f'f{n}', 'wb').write(b'x' * (15 << 20))", "exited", "No space left",
    ),
    "names": ("for n in range(1 << 20): open(f'f{n}', 'w').close()", "exited", "No space left"),
    "descriptors": ("import os\nwhile True: os.dup(0)", "exited", "Too many open files"),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "exited", "can't start new thread",
    ),
    "output": ("while True: print('x' * 999)", "output", ""),
    "errors": ("import sys\nwhile True: sys.stderr.write('x' * 999)", "output", "xxx"),
    "recursion": ("def f(): return f()\nf()", "exited", "RecursionError"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "exited", ""),
    "closed_output": ("import os; os.close(1); os.close(2); os.abort()", "exited", ""),
    "nested_source": ("eval('(' * 20000)", "exited", "Error"),
    "digits": ("print(10 ** 10000)", "exited", "ValueError"),
}  # fmt: skip
NEEDS_TREE = {"files", "names"}
"""Bounded by a file system of their own, which needs namespaces."""


@pytest.mark.parametrize("name", ENDS)
def test_a_program_that_takes_too_much_ends(
    runner: SubprocessRunner, request: pytest.FixtureRequest, name: str
) -> None:
    if name in NEEDS_TREE and "without namespaces" in request.node.name:
        pytest.skip("needs a file system of its own")
    program, ending, said = ENDS[name]
    result = run(runner, program)
    assert result.ending == ending and result.code and said in result.stderr[-2000:], result
    assert run(runner, "import os; print(os.listdir('.'))").stdout == "[]\n"


ENDLESS = {
    "loop": "while True: pass",
    "ignored_limit": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "huge_integer": "x = 3 ** (10 ** 9)",
    "regular_expression": "import re; re.match('(a*)*b', 'a' * 60)",
    "compile": "while True: compile('x=' + '1+' * 500 + '1', '', 'exec')",
    "threads": "import threading\ndef f():\n    while True: pass\nfor n in range(4): threading.Thread(target=f).start()",
}


@slow
@pytest.mark.parametrize("name", ENDLESS)
def test_processor_time_is_bounded(runner: SubprocessRunner, name: str) -> None:
    result = run(runner, ENDLESS[name])
    assert result.ending == "cpu" and 0.5 <= result.cpu_s < 6, result


@slow
def test_processes_are_bounded(runner: SubprocessRunner) -> None:
    bomb = (
        "import os, time\nstarted = 0\ntry:\n    while True:\n        if not os.fork(): time.sleep(600)\n"
        "        started += 1\nexcept OSError:\n    print(started)"
    )
    result = run(runner, bomb)
    assert result.ending == "exited" and 10 < int(result.stdout) <= 64, result
    assert run(runner, "print('next')").stdout == "next\n"


@slow
def test_processes_have_their_processor_time_together() -> None:
    runner = WarmRunner(LIMITS, at_once=1)
    for program in (
        "import os\nwhile True:\n    try:\n        if not os.fork(): os.setsid()\n    except OSError:\n        pass\n",
        "import os\nfor n in range(20): os.fork() or exec('while True: pass')\nos.wait()",
    ):
        result = run(runner, program)
        assert result.ending == "cpu" and result.cpu_s < 20, result
    assert run(runner, "print('next')").stdout == "next\n"
    runner.close()


@slow
def test_memory_of_all_processes_is_bounded() -> None:
    """Each of them stays below its own limit, but together they exceed the bound."""
    runner = WarmRunner(LIMITS, at_once=1)
    if "cgroup" not in runner.check().active:
        pytest.skip("this host has no cgroup to give")
    program = (
        "import os, time\nfor n in range(8):\n    if not os.fork():\n        x = bytearray(180 << 20)\n"
        "        print('has', flush=True)\n        time.sleep(20)\n        os._exit(0)\n"
        "for n in range(8): print(os.wait()[1], flush=True)"
    )
    result = run(runner, program)
    assert result.stdout.count("has") < 8, result
    assert run(runner, "print('next')").stdout == "next\n"
    runner.close()


@slow
@pytest.mark.parametrize("mode", ["warm", "cold"])
def test_who_stops_sleeps_or_hides_ends_by_the_deadline(mode: str) -> None:
    limits = ProgramLimits(deadline_s=3)
    runner = WarmRunner(limits, at_once=1) if mode == "warm" else SubprocessRunner(limits)
    for program in (
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import time; time.sleep(600)",
        "import os, time\nos.close(1); os.close(2); time.sleep(600)",
        "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ntime.sleep(600)",
        "import sys; sys.stdin.close(); import threading; threading.Event().wait()",
    ):
        result = run(runner, program)
        assert result.ending == "deadline" and not result.starved, result
    assert run(runner, f"print({sys.maxsize})").stdout == f"{sys.maxsize}\n"
