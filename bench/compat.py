"""Decoding the pickles of a rollout service that speaks the public protocol, each in a confined process.

`empty_p50_ms`, `empty_p90_ms`, `empty_caller_cpu_ms`: wall time, and processor time of the caller, for the answer of a `/pull` without results;
`group_p50_ms`, `group_p90_ms`, `group_caller_cpu_ms`: for one with 4 groups of 8 sequences of 1,024 tokens in 5 columns, `group_mb` long.
`refused_p50_ms`: for one that would run a command. `over_unpickling`: `group_p50_ms` over the same in this process by `pickle.loads`.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import time

import numpy as np

from astraflow_contrib_compat.pickles.decoder import PickleDecoder, PickleRefused
from bench.support.timing import percentile

TIMES, QUICK_TIMES = 200, 20
COLUMNS = ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask")


class _Command:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("true",)


def measure(quick: bool) -> dict[str, float]:
    """Measure; a quick run has a tenth of the decodings."""
    return asyncio.run(_measured(QUICK_TIMES if quick else TIMES))


async def _measured(times: int) -> dict[str, float]:
    bodies = {
        "empty": pickle.dumps({"ok": True, "result": []}),
        "group": pickle.dumps({"ok": True, "result": [_item(number) for number in range(4)]}),
        "refused": pickle.dumps({"ok": True, "result": _Command()}),
    }
    decoder = PickleDecoder(4 << 20)
    found = {"group_mb": len(bodies["group"]) / 1e6}
    try:
        for name, body in bodies.items():
            walls, before = [], 0.0
            for number in range(times + 1):
                if number == 1:
                    before = _cpu()
                began = time.perf_counter()
                try:
                    await decoder.decode(body)
                except PickleRefused:
                    assert name == "refused"
                if number:
                    walls.append(1e3 * (time.perf_counter() - began))
            found[f"{name}_p50_ms"] = percentile(walls, 0.5)
            if name != "refused":
                found[f"{name}_p90_ms"] = percentile(walls, 0.9)
                found[f"{name}_caller_cpu_ms"] = 1e3 * (_cpu() - before) / times
    finally:
        decoder.close()
    plain = []
    for _ in range(times):
        began = time.perf_counter()
        pickle.loads(bodies["group"])
        plain.append(1e3 * (time.perf_counter() - began))
    found["over_unpickling"] = found["group_p50_ms"] / percentile(plain, 0.5)
    return found


def _item(number: int) -> dict[str, object]:
    sequences = [
        {column: np.full((1, 1024), number, np.int32) for column in COLUMNS} for _ in range(8)
    ]
    trajectories = [{"sequences": [sequence]} for sequence in sequences]
    result = {"n_trajs": 8, "rewards": [0.5] * 8, "trajectories": trajectories}
    return {"task_id": number, "result": result}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
