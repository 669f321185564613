from __future__ import annotations

import asyncio
import gc
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
from astraflow_sandbox.subprocess_runner import SubprocessRunner, WarmRunner

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
    return asyncio.run(WarmRunner(limits, at_once=1).run(program, stdin))


def living(folder: Path) -> Iterator[int]:
    """Sandboxed processes whose caller has this folder for temporary files; a program is forked, so its command line is
    that of its sandbox."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f'"folder": "{folder}"'.encode() in command[-2] if len(command) > 2 else False:
            yield int(entry.name)


def wait_for(folder: Path, some: bool) -> None:
    """Until a program runs, or nothing is left."""
    until = time.monotonic() + GONE_S
    # The process outside of the namespaces, the zygote, the program and its child.
    while not (len(list(living(folder))) == 4 if some else not any(living(folder))):
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


@pytest.mark.slow
def test_the_endings() -> None:
    loops = run(
        "print('on', flush=True)\nwhile True: pass", limits=ProgramLimits(cpu_s=1, deadline_s=120)
    )
    assert (loops.ending, loops.stdout, loops.succeeded) == ("cpu", "on\n", False)
    floods = run(
        "while True: print('x' * 999)", limits=ProgramLimits(deadline_s=120, output_bytes=1000)
    )
    assert floods.ending == "output" and len(floods.stdout) == 1000
    assert floods.cpu_s > 0 and not floods.starved
    killed = run("import ctypes\nctypes.string_at(0)")
    assert (killed.ending, killed.code) == ("exited", 128 + signal.SIGSEGV)


@pytest.mark.parametrize(
    "kind", [WarmRunner, pytest.param(SubprocessRunner, marks=pytest.mark.slow)]
)
def test_nothing_is_left_after_a_deadline(kind: type[SubprocessRunner], folder: Path) -> None:
    runner = kind(ProgramLimits(deadline_s=2), at_once=1)
    assert asyncio.run(runner.run(SLEEPS)).ending == "deadline"
    del runner
    gc.collect()
    assert not list(living(folder)) and not list(folder.iterdir())


@pytest.mark.parametrize(
    "kind", [WarmRunner, pytest.param(SubprocessRunner, marks=pytest.mark.slow)]
)
def test_nothing_is_left_when_the_caller_is_cancelled(
    kind: type[SubprocessRunner], folder: Path
) -> None:
    async def cancelled() -> None:
        running = asyncio.create_task(kind(GENEROUS).run(SLEEPS))
        await asyncio.to_thread(wait_for, folder, True)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert not list(living(folder)) and not list(folder.iterdir())


def test_nothing_is_left_when_the_caller_is_killed(folder: Path) -> None:
    caller = (
        "import asyncio, sys, tempfile\n"
        "from astraflow_sandbox.subprocess_runner import WarmRunner\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "asyncio.run(WarmRunner().run(sys.argv[2]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", caller, str(folder), SLEEPS])
    try:
        wait_for(folder, True)
    finally:
        process.kill()
        process.wait()
    wait_for(folder, False)
    until = time.monotonic() + GONE_S
    while list(folder.iterdir()):  # removed by the last process
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_sandbox_that_ended_is_replaced(folder: Path) -> None:
    runner = WarmRunner(GENEROUS, at_once=1)

    async def both() -> list[str]:
        first = await runner.run("print(1)")
        for pid in living(folder):
            os.kill(pid, signal.SIGKILL)
        return [first.stdout, (await runner.run("print(2)")).stdout]

    assert asyncio.run(both()) == ["1\n", "2\n"]


@pytest.mark.slow
def test_no_more_programs_than_allowed_run_at_once(folder: Path) -> None:
    most = 0

    async def together() -> list[ProgramResult]:
        nonlocal most
        runner = SubprocessRunner(GENEROUS, at_once=2)
        runner.check()
        wait = "import time; time.sleep(0.2)"
        running = asyncio.gather(*(runner.run(f"{wait}; print({n})") for n in range(5)))
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


@pytest.mark.slow
def test_without_isolation_the_limits_hold() -> None:
    runner = WarmRunner(ProgramLimits(deadline_s=120, cpu_s=1), isolated=False)
    assert not runner.check().active
    result = asyncio.run(runner.run("import os\nprint(os.getpid())\nbytearray(1 << 40)"))
    assert "MemoryError" in result.stderr and result.stdout != "2\n"
    assert asyncio.run(runner.run("while True: pass")).ending == "cpu"


def test_a_host_without_enough_layers_is_refused() -> None:
    with pytest.raises(PreflightError, match=r"lacks landlock or files .*landlock: was left out"):
        WarmRunner(without=["landlock", "files"]).check()
    with pytest.raises(PreflightError, match="lacks seccomp"):
        WarmRunner(without=["seccomp"]).check()
    with pytest.raises(ValueError, match="no layer 'wall'; there are cgroup, files, landlock"):
        WarmRunner(without=["wall"])
    report = SubprocessRunner(without=["cgroup"]).check()
    assert "seccomp" in report.active and report.missing == {"cgroup": "was left out"}


@pytest.mark.slow
def test_a_session_keeps_its_state_until_it_ends() -> None:
    async def converse() -> list[ProgramResult]:
        runner = WarmRunner(ProgramLimits(cpu_s=1, deadline_s=60), at_once=1)
        async with runner.session() as session:
            pieces = [
                "x = 41",
                "x + 1",
                "1 / 0",
                "open('f', 'w').write('ab')",
                "print(open('f').read())",
                "while True: pass",
            ]
            found = [await session.run(piece) for piece in pieces]
            assert not session.alive
            found.append(await session.run("x"))
        return [*found, await runner.run("import os; print(os.listdir('.'), 'x' in globals())")]

    found = asyncio.run(converse())
    assert [each.stdout for each in found] == ["", "42\n", "", "2\n", "ab\n", "", "", "[] False\n"]
    assert "ZeroDivisionError" in found[2].stderr and [each.code for each in found[:5]] == [
        0,
        0,
        1,
        0,
        0,
    ]
    assert found[5].ending == "cpu" and "NameError" in found[6].stderr


@pytest.mark.slow
def test_packages_can_be_given(folder: Path) -> None:
    program = "import numpy as np; print(np.arange(4).sum()); import pydantic"
    for without in ((), ("namespaces", "files")):
        result = asyncio.run(WarmRunner(GENEROUS, packages=["numpy"], without=without).run(program))
        assert result.stdout == "6\n" and result.code == 1 and "pydantic" in result.stderr, result
    with pytest.raises(PreflightError, match="'no_such_package': it is not installed"):
        WarmRunner(packages=["no_such_package"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_programs_leave_nothing(folder: Path) -> None:
    """Processes, descriptors, folders and memory are what they were."""
    kinds = [
        "print(1)", "open('f', 'w').write('x')", "1 / 0", "import os; os._exit(3)",
        "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(99)", "import ctypes; ctypes.string_at(0)",
        "import os\nfor n in range(20): os.mkdir('d'); os.chdir('d')",
    ]  # fmt: skip

    async def many() -> tuple[int, int]:
        runner = WarmRunner(GENEROUS, at_once=2)
        await asyncio.gather(*(runner.run(each) for each in kinds))
        before = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(*(runner.run(kinds[n % len(kinds)]) for n in range(1000)))
        left = len(os.listdir("/proc/self/fd")) - before
        running = len(list(living(folder)))
        runner.close()
        return left, running

    left, running = asyncio.run(many())
    assert (
        left <= 0 and running <= 6
    )  # of each sandbox: outside, zygote, and a process that waits for a program
    assert not list(living(folder)) and not list(folder.iterdir())


def test_a_program_that_was_left_in_its_middle_answers_no_other(folder: Path) -> None:
    async def play() -> list[str]:
        runner, found = WarmRunner(GENEROUS, at_once=1), []
        for lasts in ("600", "0.2"):
            async with runner.workspace() as workspace:
                program = f"import time; print('late', flush=True); time.sleep({lasts})"
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await workspace.run(program)
                await asyncio.sleep(0.5)
                with pytest.raises(SandboxFailed, match="in the middle of a call"):
                    await workspace.run("print(1)")
            found.append((await runner.run("print('next')")).stdout)
        runner.close()
        return found

    assert asyncio.run(play()) == ["next\n", "next\n"]
    wait_for(folder, some=False)


@pytest.mark.slow
def test_files_of_a_workspace_stay_until_its_end_and_processes_do_not() -> None:
    async def play() -> list[ProgramResult]:
        runner = WarmRunner(
            ProgramLimits(cpu_s=1, deadline_s=120),
            at_once=1,
            host_programs=True,
            folders=["/app", "/deep/er"],
        )
        found = []
        for _ in range(2):
            async with runner.workspace() as workspace:
                found.append(
                    await workspace.shell("ls -A; echo a > kept; exec sleep 600 &", "/app")
                )
                found.append(await workspace.shell("echo b >> kept; while :; do :; done", "/app"))
                script = "printf '#!/bin/sh\\necho $A; python3 -c \"print(2)\" >&2' > s; chmod +x s; ./s; cat /app/kept"
                found.append(await workspace.shell(script, "/deep/er", {"A": "one"}))
                found.append(await workspace.run("import os; print(sorted(os.listdir()))"))
        runner.close()
        return found

    found = asyncio.run(play())
    for first, spun, last, listed in (found[:4], found[4:]):
        assert first.stdout == "" and first.succeeded
        assert spun.ending == "cpu"
        assert last.stdout == "one\n2\na\nb\n", last
        assert listed.stdout == "['app', 'deep']\n"


def test_a_program_finds_no_shell_unless_it_may() -> None:
    told = run("import os; print(os.path.exists('/bin/sh'), os.path.exists('/app'))")
    assert told.stdout == "False False\n"
