"""Environments through the pool of workflows, compared with the bare library in a loop.

`NAME_over_bare`: steps per CPU second of whole episodes, 16 at once, over those of the same episodes played one after the
other by the library alone (`bench.support.environment_cases`). Of the pool count this process and the worker processes, whose
start is not measured. Each environment is where a run has it: text games, the shop and the household on the event loop, what may
block in worker processes, which those share that repeat themselves (`sql`, `search_qa`, `sqlite`). `NAME_us_per_step` is CPU time of the pool's side, `NAME_bare_us_per_step` of the other. Medians of
interleaved pairs. `worst_over_bare` is the least of the ratios but for `THIN`, libraries in workers whose steps take some
microseconds, less than any message to another process: of those, and of the others in workers, `worker_us_per_step` is the most
CPU time that a step in a worker takes beyond the library's. `leaked_processes`: what is left of pools that were closed while
episodes were under way.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from astraflow_core.types import Action
from astraflow_environments.keys import EnvironmentKeys
from astraflow_environments.pool import EnvironmentPool
from bench.support import trees
from bench.support.environment_cases import CASES, Case, context
from bench.support.timing import cpu_of, ratio, spread

AT_ONCE = 16
PAIRS, ROUNDS = 5, 4
"""Pairs that are measured, and how often each side plays all episodes in one of them: no worker is replaced meanwhile."""
GONE_S = 10.0
THIN = ("gymnasium", "textarena")
IN_WORKERS = (*THIN, "sqlite", "sql", "search_qa")


def measure(quick: bool) -> dict[str, float]:
    """All cases; a quick run has three short pairs."""
    pairs, rounds = (3, 2) if quick else (PAIRS, ROUNDS)
    return asyncio.run(_measured(pairs, rounds))


async def _measured(pairs: int, rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    leaked = 0
    for name, make in CASES.items():
        case = make()
        keys = EnvironmentKeys(environment=dict(case.table), most_environments=AT_ONCE)
        pool = EnvironmentPool(keys, context())
        ours, bare = Side(lambda case=case, pool=pool: _played(pool, case)), Side(case.bare)  # type: ignore[misc]
        for number in range(pairs + 1):
            await ours.add(rounds, number > 0)
            await bare.add(rounds, number > 0)
        found[f"{name}_over_bare"] = round(ratio(bare.cpu_s, ours.cpu_s), 3)
        found[f"{name}_spread"] = round(spread(bare.cpu_s, ours.cpu_s), 3)
        found[f"{name}_us_per_step"] = round(1e6 * sorted(ours.cpu_s)[pairs // 2], 1)
        found[f"{name}_bare_us_per_step"] = round(1e6 * sorted(bare.cpu_s)[pairs // 2], 1)
        leaked += await _left_of(pool, case)
    overs = [found[f"{name}_over_bare"] for name in CASES if name not in THIN]
    beyond = [
        found[f"{name}_us_per_step"] - found[f"{name}_bare_us_per_step"]
        for name in IN_WORKERS
        if name in CASES
    ]
    worker = {"worker_us_per_step": round(max(beyond), 1)} if beyond else {}
    return {"worst_over_bare": min(overs), "leaked_processes": leaked, **worker, **found}


class Side:
    """CPU seconds per step of one side, the processes that it started included."""

    def __init__(self, play: Callable[[], Awaitable[int]]) -> None:
        self._play = play
        self.cpu_s: list[float] = []

    async def add(self, rounds: int, counts: bool) -> None:
        """Play all episodes ``rounds`` times."""
        workers = trees.tree(os.getpid()).keys() - {os.getpid()}
        before, own = {pid: cpu_of(pid) for pid in workers}, time.process_time()
        steps = sum([await self._play() for _ in range(rounds)])
        spent = time.process_time() - own
        after = trees.tree(os.getpid()).keys() - {os.getpid()}
        if counts and after != workers:
            raise RuntimeError(f"workers {workers} became {after} while they were measured")
        spent += sum(cpu_of(pid) - before.get(pid, 0.0) for pid in after)
        if counts:
            self.cpu_s.append(spent / steps)


async def _played(pool: EnvironmentPool, case: Case) -> int:
    """All episodes through the pool; the number of steps."""
    waiting = iter(case.episodes)

    async def player() -> int:
        steps = 0
        for task, script in waiting:
            async with pool.episode() as environment:
                await environment.reset(task, 0)
                for said in script:
                    steps += 1
                    seen = await environment.step(Action(said))
                    if seen.outcome is not None:
                        break
        return steps

    return sum(await asyncio.gather(*(player() for _ in range(AT_ONCE))))


async def _left_of(pool: EnvironmentPool, case: Case) -> int:
    """Close the pool while episodes are under way; how many processes are left."""
    playing = asyncio.ensure_future(_played(pool, case))
    await asyncio.sleep(0.01)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    await pool.close()
    until = time.monotonic() + GONE_S
    while len(trees.tree(os.getpid())) > 1 and time.monotonic() < until:
        await asyncio.sleep(0.05)
    return len(trees.tree(os.getpid())) - 1
