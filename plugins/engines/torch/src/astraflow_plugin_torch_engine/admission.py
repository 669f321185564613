"""Which of the requests that wait begin together."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from astraflow_plugin_torch_engine.batch import DecodingBatch, Job
from astraflow_plugin_torch_engine.cache import TILE, bucket
from astraflow_plugin_torch_engine.model import CausalModel

_MOST_PREFILL_LOGITS = 1 << 24
_MOST_PADDING = 4


def next_jobs(
    waiting: list[tuple[int, int, Job]],
    batch: DecodingBatch,
    model: CausalModel,
    most_prefill_tokens: int,
    begins: Callable[[Job], bool],
) -> tuple[list[Job], dict[bytes, npt.NDArray[np.int32]]]:
    """The first of the heap ``waiting``, taken out, as many as one forward pass and the cache allow in addition to the rows that run; and
    their prompts, equal ones once. Those for which ``begins`` is false are taken out, and begin not."""
    jobs: list[Job] = []
    prompts: dict[bytes, npt.NDArray[np.int32]] = {}
    lengths: set[int] = set()
    total = 0
    running = batch.rows
    longest = int((running["position"] + running["limit"] - running["count"]).max(initial=0)) + 1
    while waiting and batch.size + len(jobs) < batch.capacity:
        job = waiting[0][2]
        if not begins(job):
            heapq.heappop(waiting)
            continue
        prompt = job.request.prompt
        needed = max(longest, len(prompt) + job.request.sampling.max_tokens)
        rows = batch.size + len(jobs) + 1
        if bucket(rows) * max(TILE, bucket(needed)) > model.cache_tokens:
            break
        key = job.prompt_key
        if key not in prompts:
            widths = lengths | {len(prompt)}
            padded = (len(prompts) + 1) * max(widths)
            if prompts and (
                padded > most_prefill_tokens
                or padded > _MOST_PADDING * (total + len(prompt))
                or (len(prompts) + 1) * len(widths) * model.vocab > _MOST_PREFILL_LOGITS
            ):
                break
            prompts[key], lengths, total = prompt, widths, total + len(prompt)
        longest = needed
        jobs.append(job)
        heapq.heappop(waiting)
    return jobs, prompts
