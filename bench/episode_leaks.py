"""Leftovers of 10⁴ episodes, some of which crash, hang, leak or report wrong results: processes, file handles, temporary files.

Half of the episodes are of a text game in worker processes (`bench.support.unreliable_game`), half are programs in the warm
sandbox. A schedule that is drawn from a seed lets ``faulty`` of them fail: workers that die by SIGSEGV, hang, take 1 GiB, give
NaN or no observation, raise, or leave a process of another session; programs that run out of CPU time or memory, fill their folder,
fork, or are killed. Each faulty episode of the game leaves a temporary folder and a process, too. ``wrong`` counts episodes that
ended otherwise than the schedule says. After the pool and the sandbox are closed, ``left_processes``, ``left_handles`` (of this
process) and ``left_files`` (in the folder for temporary files) are counted, ``kept_files`` before that, while they were idle;
``grown_mb`` is what this process holds more than after a tenth of the episodes.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.errors import EnvironmentFailed
from astraflow_core.types import Action, Prompt
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.pool import EnvironmentPool
from astraflow_sandbox.code_runner import ProgramLimits
from astraflow_sandbox.subprocess_runner import WarmRunner
from bench.support import trees
from bench.support.environment_cases import context
from bench.support.unreliable_game import FAULTS

EPISODES, QUICK_EPISODES = 10_000, 300
FAULTY = 0.1
AT_ONCE = 4
STEP_DEADLINE_S = 1.0
WORKER_MB = 900
GONE_S = 20.0
KINDS = {
    "": "", "crash": "crashed", "daemon": "crashed", "hang": "timeout", "leak": "memory", "nan": "malformed", "type": "malformed",
    "raise": "error",
}  # fmt: skip
"""Fault → kind of the failure that the pool tells; a fault without a kind is none."""
RIGHT = "print(sum(range(100)))"
PROGRAMS = {
    "": RIGHT,
    "cpu": "while True: pass",
    "memory": "x = bytearray(1 << 30)",
    "files": "open('f', 'wb').write(b'x' * 10**6); import os, tempfile; tempfile.mkdtemp(); os._exit(3)",
    "forks": "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(3600)\nos._exit(1)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}
"""Fault → program; all but the first fail."""


def measure(quick: bool) -> dict[str, float]:
    """The figures; a quick run has 300 episodes."""
    return asyncio.run(leaks(QUICK_EPISODES if quick else EPISODES))


async def leaks(episodes: int, seed: int = 0) -> dict[str, float]:
    """Play, close and count."""
    began = time.monotonic()
    usual, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            found = await _leaks(episodes, seed, Path(folder))
        finally:
            tempfile.tempdir = usual
            os.environ.pop("TMPDIR") if variable is None else os.environ.update(TMPDIR=variable)
    return found | {"wall_s": round(time.monotonic() - began, 1)}


async def _leaks(episodes: int, seed: int, folder: Path) -> dict[str, float]:
    handles, processes = _handles(), _processes()
    schedule = list(_schedule(episodes, seed))
    table = {"use": "bench.support.unreliable_game:UnreliableGame"}
    keys = EnvironmentKeys(
        environment=table,
        most_environments=AT_ONCE,
        step_deadline_s=STEP_DEADLINE_S,
        worker_memory_mb=WORKER_MB,
    )
    pool = EnvironmentPool(keys, context())
    runner = WarmRunner(ProgramLimits(cpu_s=1, memory_mb=256), at_once=AT_ONCE)
    warm, wrong, held = schedule[: episodes // 10], 0, 0.0
    for part in (warm, schedule[len(warm) :]):
        wrong += await _played(pool, runner, part)
        held = held or _resident_mb()
    grown, kept = _resident_mb() - held, _files(folder)
    replaced = pool.replaced
    await pool.close()
    runner.close()
    faults = Counter(fault for _, fault in schedule)
    return {
        "episodes": float(episodes),
        "faulty": float(episodes - faults[""]),
        "wrong": float(wrong),
        "workers_replaced": float(replaced),
        "kept_files": float(kept),
        **await _left(handles, processes, folder),
        "grown_mb": round(grown, 1),
        "cpu_s": round(trees.cpu_s(os.getpid()), 1),
    }


def _schedule(episodes: int, seed: int) -> Iterator[tuple[bool, str]]:
    """For each episode whether it is one of the game, and its fault."""
    drawn = random.Random(seed)
    programs = [fault for fault in PROGRAMS if fault]
    for number in range(episodes):
        game = number % 2 == 0
        faulty = drawn.random() < FAULTY
        yield game, drawn.choice(FAULTS if game else programs) if faulty else ""


async def _played(pool: EnvironmentPool, runner: WarmRunner, part: list[tuple[bool, str]]) -> int:
    """Play a part of the schedule; how many ended otherwise than it says."""
    waiting, wrong = iter(part), 0

    async def player() -> None:
        nonlocal wrong
        for game, fault in waiting:
            wrong += not await (_game(pool, fault) if game else _program(runner, fault))

    await asyncio.gather(*(player() for _ in range(AT_ONCE)))
    return wrong


async def _game(pool: EnvironmentPool, fault: str) -> bool:
    """Whether an episode fails as its fault says, or is played to its end."""
    earned, kind = 0.0, ""
    try:
        async with pool.episode() as environment:
            await environment.reset(Prompt("p", {"fault": fault}), 0)
            for _ in range(3):
                reward = (await environment.step(Action("next"))).reward
                assert isinstance(reward, float), "the game has one role"
                earned += reward
    except EnvironmentFailed as error:
        kind = error.kind
    return kind == KINDS[fault] and (bool(fault) or round(earned, 6) == 1)


async def _program(runner: WarmRunner, fault: str) -> bool:
    """Whether a program fails exactly if it is to."""
    result = await runner.run(PROGRAMS[fault])
    return result.succeeded != bool(fault)


async def _left(handles: int, processes: int, folder: Path) -> dict[str, float]:
    """What is more than before, once what ends has ended."""
    until = time.monotonic() + GONE_S
    while True:
        found = {
            "left_processes": float(max(0, _processes() - processes)),
            "left_handles": float(max(0, _handles() - handles)),
            "left_files": float(_files(folder)),
        }
        if not any(found.values()) or time.monotonic() > until:
            return found
        await asyncio.sleep(0.1)


def _processes() -> int:
    """Those of this machine that are ours, or that the game and programs start: an orphan has another parent."""
    mine = trees.tree(os.getpid()).keys()
    orphans = [each for each in _sleepers() if each not in mine]
    return len(mine) + len(orphans)


def _sleepers() -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == b"sleep\x003600\x00":
                yield int(entry.parent.name)
        except OSError:  # it has ended
            continue


def _handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def _files(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*"))


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
