"""The quickstart and the same job in TRL's GRPOTrainer: seconds to held-out greedy 0.9, theirs / ours.

Both sides are given the same start weights, prompts, batches, optimizer, schedules and reward
(``bench.baselines.trl_grpo`` lists them) and the same two cores, and are measured alike: from the start of
the command to the first evaluation that is at 0.9, with all that lies between, imports and evaluations
included; CPU seconds are those of the whole process tree at that moment. Then it is ended. A pair shares
a seed, each pair has another.

Each side runs twice in each round. TRL with all cores for torch and with one: the first is faster, the second
takes less CPU. Ours as the quickstart is shipped, with two RaaS to show that there may be several, and with the
one that two cores need. ``vs_trl_wall`` and ``vs_trl_cpu`` compare the better of either side,
``shipped_vs_trl_…`` the quickstart with the better of TRL; ``…_after_start`` leaves out what comes before the
end of the first update, which is mostly imports: here in a process for each role, there in one. ``others_cores`` tells how many cores other work on the machine took meanwhile, on
average: 0 is an idle machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from astraflow_core.component import Kind
from astraflow_core.config.load import component_context
from astraflow_core.config.models import RunConfig
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_runtime.models.folders import resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from bench.quickstart import EXAMPLES
from bench.support import trees
from bench.support.environments import environment
from bench.support.timing import ratio, spread

BASELINES = Path(__file__).parent / "baselines"
PROGRAM, REQUIREMENTS = BASELINES / "trl_grpo.py", BASELINES / "trl_requirements.txt"
QUICKSTART, POLICY = EXAMPLES / "quickstart.toml", "solver"
SOLVED = 0.9
SHIPPED, EPISODES = 2, 512
"""RaaS of the quickstart, and the episodes that all of them run at once."""
CORES, PAIRS = 2, 5
DEADLINE_S = 600.0
POLL_S = 0.02
TUNED = {
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
}
"""What the baseline's docstring says of the allocator and of waiting threads."""


@dataclass(frozen=True)
class Solved:
    """One side of one pair, from the start of its command. ``first_*``: when its first update was done."""

    steps: int
    wall_s: float
    cpu_s: float
    first_wall_s: float
    first_cpu_s: float


Events = list[tuple[float, int, float | None]]
"""(time, updates made, accuracy of the evaluation, or ``None`` for the end of an update) so far."""


def measure(quick: bool) -> dict[str, float]:
    """A pair per seed, in turn: ours, TRL with all cores, TRL with one (left out if ``quick``)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:CORES]))
    python = environment("trl", REQUIREMENTS)
    threads = (CORES,) if quick else (CORES, 1)
    ours: dict[int, list[Solved]] = {count: [] for count in ((1,) if quick else (SHIPPED, 1))}
    theirs: dict[int, list[Solved]] = {count: [] for count in threads}
    began, cpu, used = time.monotonic(), trees.machine_cpu_s(), 0.0
    for seed in range(1 if quick else PAIRS):
        for count in ours:
            ours[count].append(astraflow(seed, count))
        for count in threads:
            theirs[count].append(trl(python, job(seed, count)))
        rounds = [runs[-1] for runs in (*ours.values(), *theirs.values())]
        used += sum(run.cpu_s for run in rounds)
        print(f"peer: seed {seed}: {rounds}", file=sys.stderr)
    others = (trees.machine_cpu_s() - cpu - used) / (time.monotonic() - began)
    return {**compared(ours, theirs), "others_cores": others, **versions(python)}


def compared(ours: dict[int, list[Solved]], theirs: dict[int, list[Solved]]) -> dict[str, float]:
    """The ratios, and what they are made of: ``ours`` by the number of RaaS, ``theirs`` by that of threads.
    ``..._after_start``: from the end of the first update."""
    result: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for name, value in (
        ("wall", lambda run: run.wall_s),
        ("cpu", lambda run: run.cpu_s),
        ("wall_after_start", lambda run: run.wall_s - run.first_wall_s),
        ("cpu_after_start", lambda run: run.cpu_s - run.first_cpu_s),
    ):
        mine, best = (
            min((list(map(value, runs)) for runs in side.values()), key=statistics.median)
            for side in (ours, theirs)
        )
        result[f"vs_trl_{name}"] = ratio(best, mine)
        if len(mine) > 1:
            spreads[f"vs_trl_{name}_spread"] = spread(best, mine)
        if SHIPPED in ours:
            result[f"shipped_vs_trl_{name}"] = ratio(best, list(map(value, ours[SHIPPED])))
    result |= {**spreads, "pairs": len(next(iter(ours.values())))}
    for count, runs in ours.items():
        result |= _medians(f"ours_{count}_raas", runs)
    for count, runs in theirs.items():
        result |= _medians(f"trl_{count}_threads", runs)
    return result


def _medians(side: str, runs: list[Solved]) -> dict[str, float]:
    def median(values: Iterable[float]) -> float:
        return round(statistics.median(values), 4)

    return {
        f"{side}_wall_s": median(run.wall_s for run in runs),
        f"{side}_cpu_s": median(run.cpu_s for run in runs),
        f"{side}_steps": median(run.steps for run in runs),
        f"{side}_first_wall_s": median(run.first_wall_s for run in runs),
        f"{side}_first_cpu_s": median(run.first_cpu_s for run in runs),
        f"{side}_wall_s_per_step": median(
            (r.wall_s - r.first_wall_s) / (r.steps - 1) for r in runs
        ),
        f"{side}_cpu_s_per_step": median((r.cpu_s - r.first_cpu_s) / (r.steps - 1) for r in runs),
    }


# -- ours ------------------------------------------------------------------------------------------


def astraflow(seed: int, replicas: int) -> Solved:
    """The quickstart, with as many RaaS that share its places for episodes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "astraflow_runtime", "run", str(QUICKSTART), "--no-live",
            "--set", f"run.seed={seed}", "--set", f"run.directory='{folder}'",
            "--set", f"raas.replicas={replicas}", "--set", f"raas.max_concurrent_episodes={EPISODES // replicas}",
        ]  # fmt: skip

        def events() -> Events:
            lines = [line for file in Path(folder).glob("*/metrics.jsonl") for line in _lines(file)]
            return [event for line in lines for event in _events(line)]

        return solved(command, events)


def _events(line: dict[str, Any]) -> Events:
    """Of a line of ``metrics.jsonl``: a step, an evaluation, or nothing that counts here."""
    if "eval" in line:
        return [(line["time"], line["eval"]["version"], line["eval"]["sets"]["held_out"]["avg"])]
    return [(line["time"], line["step"], None)] if "step" in line else []


# -- theirs ----------------------------------------------------------------------------------------


def trl(python: Path, work: dict[str, Any]) -> Solved:
    """The same job in TRL."""
    with tempfile.TemporaryDirectory() as folder:
        description, file = Path(folder) / "job.json", Path(folder) / "evaluations.jsonl"
        description.write_text(json.dumps(work))

        def events() -> Events:
            return [(line["time"], line["step"], line.get("accuracy")) for line in _lines(file)]

        command = [str(python), str(PROGRAM), str(description), str(file)]
        return solved(command, events, {**TUNED, "OMP_NUM_THREADS": str(work["threads"])})


def job(seed: int, threads: int) -> dict[str, Any]:
    """The quickstart's config, start weights and data in plain values, for ``bench.baselines.trl_grpo``."""
    loaded = load_config(QUICKSTART, [f"run.seed={seed}"])
    config = resolve_models(loaded.config, ModelResolver(loaded.catalog))
    policy = config.policies[POLICY]
    trainer: Any = loaded.components[f"policies.{POLICY}.trainer"][1]
    algorithm: Any = loaded.components[f"policies.{POLICY}.algorithm"][1]

    def source(name: str, table: Any) -> Any:
        context = component_context(config, Path(), "dataflow", "", name, "")
        return loaded.catalog.build(Kind.PROMPT_SOURCE, table, context)

    cursor = PromptCursor(source("prompts", config.prompts), seed, config.prompts.shuffle)
    held_out = source("held_out", config.eval.sets["held_out"])
    count = config.run.steps * policy.batch_sequences // config.run.group_size
    return {
        **_settings(config, policy.batch_sequences),
        "model": policy.model,
        "seed": seed,
        "threads": threads,
        "prompts": [dict(cursor.take().data) for _ in range(count)],
        "held_out": [dict(held_out[index].data) for index in range(len(held_out))],
        **{key: getattr(trainer, key) for key in (
            "lr", "betas", "weight_decay", "max_grad_norm", "warmup_steps", "min_lr_ratio",
        )},
        **{key: getattr(algorithm, key) for key in ("clip_low", "clip_high", "entropy_coef")},
    }  # fmt: skip


def _settings(config: RunConfig, batch_sequences: int) -> dict[str, Any]:
    return {
        "steps": config.run.steps,
        "group_size": config.run.group_size,
        "batch_sequences": batch_sequences,
        "max_tokens": config.sampling.max_tokens,
        "temperature": config.sampling.temperature,
        "eval_every": config.eval.every,
    }


# -- both ------------------------------------------------------------------------------------------


def solved(
    command: list[str], events: Callable[[], Events], environment: dict[str, str] | None = None
) -> Solved:
    """Start ``command``, wait for an evaluation at :data:`SOLVED`, end it."""
    began = time.time()
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    first: tuple[float, float] | None = None
    try:
        while time.time() < began + DEADLINE_S:
            for at, steps, accuracy in events():
                if first is None and accuracy is None:
                    first = at - began, trees.cpu_s(process.pid)
                if first is not None and accuracy is not None and accuracy >= SOLVED:
                    return Solved(steps, at - began, trees.cpu_s(process.pid), *first)
            if process.poll() is not None:
                raise RuntimeError(
                    f"{command} ended with {process.returncode} and was not at {SOLVED}"
                )
            time.sleep(POLL_S)
        raise TimeoutError(f"{command} was not at {SOLVED} within {DEADLINE_S:.0f} s")
    finally:
        trees.kill(process.pid)
        process.wait()


def _lines(file: Path) -> list[dict[str, Any]]:
    """Whole lines of a file of JSON that somebody may be writing; none if it is not there."""
    if not file.exists():
        return []
    text = file.read_text()
    return [json.loads(line) for line in islice(text.split("\n"), text.count("\n"))]


def versions(python: Path) -> dict[str, float]:
    """Major and minor of what was compared, as numbers: 1.16 of 1.16.0."""
    names = ["trl", "torch", "transformers"]
    code = f"from importlib.metadata import version; print(*map(version, {names}))"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    numbers = [found.split(".") for found in done.stdout.split()]
    return {
        f"{name}_version": float(f"{number[0]}.{number[1]}")
        for name, number in zip(names, numbers, strict=True)
    }
