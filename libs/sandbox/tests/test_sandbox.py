from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_core.errors import PreflightError
from astraflow_sandbox.code_runner import ProgramLimits, ProgramResult, SandboxFailed
from astraflow_sandbox.subprocess_runner import SubprocessRunner

GENEROUS = ProgramLimits(deadline_s=120)
SLEEPS = (
    "import os, time\nif not os.fork():\n    os.setsid()\nprint('up', flush=True)\ntime.sleep(600)"
)
GONE_S = 60


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of programs lie."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run(program: str, stdin: str = "", limits: ProgramLimits = GENEROUS) -> ProgramResult:
    return asyncio.run(SubprocessRunner(limits).run(program, stdin))


def living(folder: Path) -> Iterator[int]:
    """Processes that work in a folder below."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(f"{folder}/"):
                yield int(entry.name)
        except OSError:
            continue


def wait_for(folder: Path, some: bool) -> None:
    until = time.monotonic() + GONE_S
    while any(living(folder)) != some:
        assert time.monotonic() < until, f"processes: {list(living(folder))}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "program",
    [
        "name = input()\nprint(f'hello {name}')",
        "import sys, math, json\nprint(json.dumps({'pi': round(math.pi, 4)}))\nsys.exit(3)",
        "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nif __name__ == '__main__':\n    print(f(10), 'ä')",
        "import os\nopen('notes', 'w').write('kept')\nprint(open('notes').read())\nos._exit(7)",
    ],
)
def test_a_program_does_what_it_does_outside(program: str, folder: Path) -> None:
    outside = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program],
        input="Ada\n", capture_output=True, text=True, cwd=folder, check=False, timeout=120,
    )  # fmt: skip
    inside = run(program, "Ada\n")
    assert (inside.stdout, inside.code, inside.ending) == (
        outside.stdout,
        outside.returncode,
        "exited",
    )


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        ("open('/etc/passwd').read()", "PermissionError"),
        ("open('/tmp/astraflow-escaped', 'w')", "PermissionError"),
        ("open('/proc/self/environ').read()", "PermissionError"),
        ("import os; os.kill(PID, 9)", "ProcessLookupError"),
        ("import socket; socket.create_connection(('127.0.0.1', PORT))", "PermissionError"),
        ("import socket; socket.create_connection(('1.1.1.1', 53), 5)", "PermissionError"),
        (
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
            "unreachable",
        ),
        ("bytearray(1 << 40)", "MemoryError"),
        ("open('big', 'wb').write(b'x' * (1 << 26))", "File too large"),
        ("import pytest", "ModuleNotFoundError"),
    ],
)
def test_what_a_program_may_not_do(attempt: str, error: str) -> None:
    result = run(attempt.replace("PORT", "9").replace("PID", str(os.getpid())))
    assert result.code == 1 and error in result.stderr.splitlines()[-1], result
    assert "confinement.py" not in result.stderr


def test_nothing_of_the_environment_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
    result = run("import os, sys\nprint(dict(os.environ), sys.argv, os.listdir())")
    assert result.succeeded and "secret" not in result.stdout
    assert result.stdout.endswith("['main.py'] ['main.py']\n")


def test_the_endings() -> None:
    loops = run(
        "print('on', flush=True)\nwhile True: pass", limits=ProgramLimits(cpu_s=1, deadline_s=120)
    )
    assert (loops.ending, loops.stdout, loops.succeeded) == ("cpu", "on\n", False)
    floods = run(
        "while True: print('x' * 999)", limits=ProgramLimits(deadline_s=120, output_bytes=1000)
    )
    assert floods.ending == "output" and len(floods.stdout) == 1000
    killed = run("import ctypes\nctypes.string_at(0)")
    assert (killed.ending, killed.code) == ("exited", 128 + signal.SIGSEGV)


def test_nothing_is_left_after_a_deadline(folder: Path) -> None:
    result = run(SLEEPS, limits=ProgramLimits(deadline_s=8))
    assert result.ending == "deadline"
    assert not list(living(folder)) and not list(folder.iterdir())


def test_nothing_is_left_when_the_caller_is_cancelled(folder: Path) -> None:
    async def cancelled() -> None:
        running = asyncio.create_task(SubprocessRunner(GENEROUS).run(SLEEPS))
        await asyncio.to_thread(wait_for, folder, True)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert not list(living(folder)) and not list(folder.iterdir())


def test_nothing_is_left_when_the_caller_is_killed(folder: Path) -> None:
    caller = (
        "import asyncio, sys, tempfile\n"
        "from astraflow_sandbox.subprocess_runner import SubprocessRunner\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "asyncio.run(SubprocessRunner().run(sys.argv[2]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", caller, str(folder), SLEEPS])
    try:
        wait_for(folder, True)
    finally:
        process.kill()
        process.wait()
    wait_for(folder, False)


def test_no_more_programs_than_allowed_run_at_once(folder: Path) -> None:
    most = 0

    async def together() -> list[ProgramResult]:
        nonlocal most
        runner = SubprocessRunner(GENEROUS, at_once=2)
        runner.check()
        running = asyncio.gather(*(runner.run(f"print({n})") for n in range(5)))
        while not running.done():
            most = max(most, len(list(folder.iterdir())))
            await asyncio.sleep(0.005)
        return await running

    assert [result.stdout for result in asyncio.run(together())] == [f"{n}\n" for n in range(5)]
    assert most == 2


def test_a_sandbox_that_fails_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SandboxFailed, match="did not start a program"):
        run("print(1)")
    with pytest.raises(PreflightError, match="Landlock and unprivileged user namespaces"):
        SubprocessRunner().check()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SandboxFailed, match="/nowhere/python"):
        run("print(1)")


def test_without_isolation_the_limits_hold() -> None:
    runner = SubprocessRunner(ProgramLimits(deadline_s=120, cpu_s=1), isolated=False)
    runner.check()
    result = asyncio.run(runner.run("import os\nprint(os.getpid())\nbytearray(1 << 40)"))
    assert "MemoryError" in result.stderr and result.stdout != "2\n"
    assert asyncio.run(runner.run("while True: pass")).ending == "cpu"
