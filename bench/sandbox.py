"""A small program in the warm sandbox, compared with a bare `subprocess`; and the probes that escape.

The program reads a number and prints a sum of squares. `speed_over_subprocess`: wall time of `python -c PROGRAM` over that of
`WarmRunner.run`, median of interleaved pairs, one at a time; `speed_over_isolated`: the same for `python -I -S -c`, which starts
without site packages. `warm_p50_ms`, `warm_p90_ms`: wall time of a warm run; `warm_cpu_ms`, `subprocess_cpu_ms`: processor time of
one run, that of the caller and all processes together; `programs_per_cpu_s` follows from it. `cold_cpu_ms`: an interpreter started
and confined for one program. `escapes`: programs of `libs/sandbox/tests/probes.py` that reached what they aimed at, of `probes`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from astraflow_sandbox.code_runner import ProgramLimits
from astraflow_sandbox.subprocess_runner import SubprocessRunner, WarmRunner
from bench.support.timing import percentile, ratio, spread

PROGRAM, GIVEN, WRITTEN = (
    "n=int(input());print(sum(i*i for i in range(n)))",
    "1000\n",
    "332833500\n",
)
PROBES = Path(__file__).parents[1] / "libs" / "sandbox" / "tests" / "probes.py"
PAIRS, QUICK_PAIRS = 200, 10
LIMITS = ProgramLimits(deadline_s=120)


def measure(quick: bool) -> dict[str, float]:
    """Measure; a quick run has ten pairs."""
    return asyncio.run(_measured(QUICK_PAIRS if quick else PAIRS))


async def _measured(pairs: int) -> dict[str, float]:
    warm = WarmRunner(LIMITS, at_once=1)
    walls: dict[str, list[float]] = {"warm": [], "plain": [], "isolated": []}
    cpu = dict.fromkeys(walls, 0.0)
    for pair in range(pairs + 1):
        for name, flags in (("warm", None), ("plain", ["-c"]), ("isolated", ["-I", "-S", "-c"])):
            began, before = time.perf_counter(), _cpu()
            if flags is None:
                result = await warm.run(PROGRAM, GIVEN)
                written, used = result.stdout, result.cpu_s
            else:
                written, used = _bare(flags), 0.0
            if written != WRITTEN:
                raise RuntimeError(f"{name}: the program wrote {written!r}")
            if pair:
                walls[name].append(time.perf_counter() - began)
                cpu[name] += _cpu() - before + used
    found = {
        "speed_over_subprocess": round(ratio(walls["plain"], walls["warm"]), 2),
        "speed_over_isolated": round(ratio(walls["isolated"], walls["warm"]), 2),
        "spread": round(spread(walls["plain"], walls["warm"]), 2),
        "warm_p50_ms": round(1000 * statistics.median(walls["warm"]), 2),
        "warm_p90_ms": round(1000 * percentile(walls["warm"], 0.9), 2),
        "subprocess_p50_ms": round(1000 * statistics.median(walls["plain"]), 2),
        "warm_cpu_ms": round(1000 * cpu["warm"] / pairs, 2),
        "subprocess_cpu_ms": round(1000 * cpu["plain"] / pairs, 2),
        "isolated_cpu_ms": round(1000 * cpu["isolated"] / pairs, 2),
        "cold_cpu_ms": await _cold(max(3, pairs // 20)),
    }
    warm.close()
    found["programs_per_cpu_s"] = round(1000 / found["warm_cpu_ms"], 1)
    return {**found, **await _escapes()}


def _bare(flags: list[str]) -> str:
    command = [sys.executable, *flags, PROGRAM]
    return subprocess.run(
        command, input=GIVEN, capture_output=True, text=True, check=True, timeout=600
    ).stdout


def _cpu() -> float:
    """Seconds of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def _cold(programs: int) -> float:
    """Milliseconds of processor time; those of the sandbox are children of this process that have ended."""
    runner, before = SubprocessRunner(LIMITS), _cpu()
    for _ in range(programs):
        await runner.run(PROGRAM, GIVEN)
    return round(1000 * (_cpu() - before) / programs, 1)


async def _escapes() -> dict[str, float]:
    probes = _module(PROBES)
    attempts: Mapping[str, str] = {**probes.FILES, **probes.NETWORK, **probes.PROCESSES}
    runner, escaped = WarmRunner(LIMITS, at_once=1), 0
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        secret = Path(folder, "secret")
        secret.write_text("secret")
        victim = subprocess.Popen(["sleep", "3600"])
        for program in attempts.values():
            aimed = program.replace("SECRET", str(secret)).replace("HOST", str(victim.pid))
            aimed = aimed.replace("PORT", str(server.getsockname()[1]))
            result = await runner.run(f"{aimed}\nprint('escaped')")
            escaped += "escaped" in result.stdout or victim.poll() is not None
        victim.kill()
        victim.wait()
        for leaves, looks in probes.PAIRS.values():
            await runner.run(leaves)
            escaped += (await runner.run(looks)).stdout != "[]\n"
    runner.close()
    return {"escapes": float(escaped), "probes": float(len(attempts) + len(probes.PAIRS))}


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
