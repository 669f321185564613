"""A tutorial as a reader follows it: files are saved, commands typed and cells run in order, in one folder.

What a page shows below a command is compared with what the command prints: its lines are there in this order; numbers
may differ, and ``…`` stands for anything, alone in a line for any lines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from astraflow_testing.forked_runs import write_command

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_DOWNLOAD = re.compile(r"\b[Dd]ownload\s+\[`([^`]+)`\]\(([^)]+)\)")
_SAVE = re.compile(r"\b[Ss]ave[^`]* as `([^`]+)`[^`]*:$")
_FAILS = re.compile(r"\b(?:ends|exits) with (?:the )?(?:exit )?code (\d+)")
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:e-?\d+)?")
_END = "the block has ended with"
_CELLS = f"""
import ast, asyncio, inspect, sys, traceback
names, loop = {{"__name__": "__main__"}}, asyncio.new_event_loop()
def run(tree, mode):
    result = eval(compile(tree, "cell", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(result):
        loop.run_until_complete(result)
while source := sys.stdin.readline():
    code = 0
    try:
        body = ast.parse(ast.literal_eval(source)).body
        shown = [body.pop()] if isinstance(body[-1], ast.Expr) else []
        run(ast.Module(body, []), "exec")
        run(ast.Interactive(shown), "single")
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        code = 1
    print("\\n{_END}", code, flush=True)
"""
"""What a notebook does: it runs a cell, with ``await``, and shows the value of its last line."""


@dataclass(frozen=True)
class Step:
    """One step of the reader: ``file`` is where to save ``text``, if it is not typed."""

    kind: str
    text: str
    file: str = ""
    exit_code: int = 0


def steps(page: str) -> Iterator[Step]:
    """What a page tells the reader to do, in its order; ``ValueError`` for a block that nothing is to be done with."""
    at = 0
    for block in _BLOCK.finditer(page):
        indent, language, text = block.groups()
        before = page[at : block.start()]
        at = block.end()
        yield from (Step("download", path, name) for name, path in _DOWNLOAD.findall(before))
        text = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        paragraph = " ".join(before.strip().rpartition("\n\n")[2].split())
        if saved := _SAVE.search(paragraph):
            yield Step("save", text, saved[1])
        elif language in ("sh", "python"):
            fails = _FAILS.search(paragraph)
            yield Step(language, text, exit_code=int(fails[1]) if fails else 0)
        elif language == "text":
            yield Step("output", text)
        else:
            raise ValueError(
                f"say what to do with this block, as in 'Save this as `x.toml`:':\n{text}"
            )


def missing(shown: str, real: str) -> str | None:
    """The first line of what a page shows that is not in what was printed; ``None`` if all are."""
    left = iter([_plain(line) for line in real.splitlines()])
    for line in shown.splitlines():
        if not (wanted := _plain(line)) or wanted == "…":
            continue
        pattern = re.compile(".*".join(map(re.escape, wanted.split("…"))))
        if not any(pattern.fullmatch(each) for each in left):
            return line
    return None


def _plain(line: str) -> str:
    return _NUMBER.sub("#", " ".join(line.split()))


class Session:
    """A shell, or the kernel of a notebook, that stays from block to block."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._printed = folder.parent / f"printed by {Path(command[0]).name}"
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=self._printed.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self._read = 0

    def send(self, text: str, deadline_s: float) -> tuple[str, int]:
        """What a block prints, and the exit code of its last command."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()
        end = time.monotonic() + deadline_s
        while True:
            printed = self._printed.read_bytes()[self._read :].decode()
            if found := re.search(rf"\n{_END} (\d+)\n", printed):
                self._read += len(printed[: found.end()].encode())
                return printed[: found.start()], int(found[1])
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError(
                    f"no end within {deadline_s:.0f} s of:\n{text}\nprinted:\n{printed}"
                )
            time.sleep(0.05)

    def close(self) -> None:
        """End it, and what it has started in its group."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()


def own_environment(folder: Path) -> Path:
    """The folder of the commands of a new environment, which has the packages of this one and may install its own."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/*/site-packages")
    here = sysconfig.get_paths()["purelib"]
    (packages / "shared.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    for name, module in (("astraflow", "astraflow_runtime"), ("pip", "pip")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {module} "$@"\n')
        command.chmod(0o755)
    return folder / "bin"


def shell(folder: Path, environment: Mapping[str, str], commands: Path) -> Session:
    """A shell with the commands of a folder, whose jobs can be interrupted, as those of a terminal."""
    path = f"{commands}{os.pathsep}{environment['PATH']}"
    session = Session(["bash", "--norc"], folder, {**environment, "PATH": path, "COLUMNS": "200"})
    session.send(f"set -m -o pipefail\n{_ended}", 10)
    return session


_ended = f"printf '\\n{_END} %s\\n' $?\n"


def follow(page: Path, folder: Path, environment: Mapping[str, str], deadline_s: float) -> None:
    """Do all that a page says; ``AssertionError`` names the first block that does something else than it shows. A page
    that installs something does so in an environment of its own; in all others the services of a run are forks."""
    end = time.monotonic() + deadline_s
    todo = list(steps(page.read_text(encoding="utf-8")))
    commands = Path(sys.executable).parent
    if any(step.kind == "sh" and "pip install" in step.text for step in todo):
        commands = own_environment(folder.parent / "environment")
        environment = {
            **environment,
            "PIP_NO_BUILD_ISOLATION": "0",
        }  # flit_core is here, an index may not be
    elif sys.platform == "linux":
        environment = {
            **environment,
            "PATH": f"{commands}{os.pathsep}{environment['PATH']}",
        }
        commands = folder.parent / "commands"
        commands.mkdir(exist_ok=True)
        write_command(commands)
    typed = shell(folder, environment, commands)
    sessions = {"sh": typed}
    printed = ""
    try:
        for step in todo:
            if step.kind == "download":
                shutil.copy(page.parent / step.text, folder / step.file)
            elif step.kind == "save":
                (folder / step.file).parent.mkdir(parents=True, exist_ok=True)
                (folder / step.file).write_text(step.text, encoding="utf-8")
            elif step.kind == "output":
                line = missing(step.text, printed)
                assert line is None, (
                    f"{page.name} shows\n  {line}\nbut this was printed:\n{printed}"
                )
            else:
                if step.kind == "python" and "python" not in sessions:
                    sessions["python"] = Session(
                        [sys.executable, "-c", _CELLS], folder, environment
                    )
                text = f"{step.text}{_ended}" if step.kind == "sh" else f"{step.text!r}\n"
                printed, code = sessions[step.kind].send(text, end - time.monotonic())
                assert code == step.exit_code, (
                    f"{page.name}: exit code {code} of\n{step.text}\n{printed}"
                )
    finally:
        for session in sessions.values():
            session.close()
