"""One row of 131,000 tokens through a whole run: sampled from, pushed, served, trained by ranks that share it, and back.

`astraflow run` of a prompt of that length and 8 sampled tokens, one update, with the trainer `fsdp` at one, two and four ranks
(`context_parallel`) on a Qwen3 of 1 layer (hidden 32, 2 heads of 16, 1 head of keys), float32 without `gradient_checkpointing`. The next
version is loaded by the engine. `tokens`: of the row. `ranks_N_mb`: most resident memory of a rank of N, and
`ranks_N_bytes_per_token`: by how much it is above that of a run with a row of `SHORT` tokens, per token of the row.
`ranks_N_cpu_s`: CPU seconds of all N, start and publishing included, `ranks_N_step_s`: wall seconds of forward and backward pass.
`engine_…`, `raas_…`, `dataflow_…`: the same of the process that samples, of its RaaS and of the dataflow, at one rank. `dataflow_cpu_s` is of the whole
run. `half_mb_ratio` and `half_cpu_ratio`: memory above the short run, and CPU seconds above it, of two ranks over those with
half of the tokens: 2 is linear, 4 quadratic. The norms of the gradients of one, two and four ranks are checked against each other.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.support.processes import ROOT

LONG, SHORT, QUICK = 131_000, 4_000, 8_000
RANKS = (1, 2, 4)
SAMPLED = 8
EVERY_S = 0.25
TIMEOUT_S = 3600
ROLES = {
    "astraflow_engine_host": "engine",
    "astraflow_runtime raas": "raas",
    "astraflow_runtime dataflow": "dataflow",
    "astraflow_runtime trainer": "ranks",
}
CONFIG = """
[run]
name = "long"
steps = 1
max_staleness = 0
group_size = 1
deadline_s = 3000
episode_deadline_s = 3000
lease_s = 3000
[prompts]
use = "jsonl"
path = "long.jsonl"
[workflow]
use = "single_turn"
[reward]
use = "exact"
[sampling]
max_tokens = {sampled}
[policies.solver]
model = "tiny:qwen3?hidden=32&layers=1&heads=2&kv_heads=1&head_dim=16&ffn=64&context=131072"
batch_sequences = 1
engine = {{ use = "torch" }}
algorithm = {{ use = "reinforce", entropy_coef = 0.1 }}
transport = {{ use = "http" }}
trainer = {{ use = "fsdp", ranks = {ranks}, context_parallel = {ranks}, lr = 1e-3 }}
"""


@dataclass
class LongRun:
    """What one run took: ``memory`` of the fullest process of each role in MB, ``cpu_s`` of each launched process, metrics of the update."""

    memory: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def measure(quick: bool) -> dict[str, float]:
    """The fields of the module's docstring."""
    long, counts = (QUICK, (1, 2)) if quick else (LONG, RANKS)
    short, found = SHORT // 4 if quick else SHORT, {"tokens": float(long + SAMPLED)}
    norms = []
    for ranks in counts:
        base, full = run(short, ranks), run(long, ranks)
        norms.append(full.metrics["grad_norm"])
        per_token = _per_token(base, full, long - short)
        found |= {
            f"ranks_{ranks}_mb": full.memory["ranks"],
            f"ranks_{ranks}_bytes_per_token": per_token["ranks"],
            f"ranks_{ranks}_cpu_s": full.cpu_s["trainer-solver"],
            f"ranks_{ranks}_step_s": full.metrics["forward_s"] + full.metrics["backward_s"],
        }
        if ranks == 1:
            for role in ("engine", "raas", "dataflow"):
                found[f"{role}_mb"] = full.memory[role]
                found[f"{role}_bytes_per_token"] = per_token[role]
            found["raas_and_engine_cpu_s"] = full.cpu_s["raas-0"]
            found["dataflow_cpu_s"] = full.cpu_s["dataflow"]
        if ranks == 2:
            half = run(long // 2, ranks)
            found["half_mb_ratio"] = _above(base, full, "memory") / _above(base, half, "memory")
            found["half_cpu_ratio"] = _above(base, full, "cpu_s") / _above(base, half, "cpu_s")
    if not all(math.isclose(norm, norms[0], rel_tol=1e-3) and norm > 0 for norm in norms):
        raise AssertionError(f"norms of the gradients at {counts} ranks are {norms}")
    return {name: round(value, 3) for name, value in found.items()}


def run(tokens: int, ranks: int) -> LongRun:
    """One update with a row whose prompt has ``tokens``, on ``ranks`` that share it."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        text = "".join(str(n * n % 7) for n in range(tokens))
        (place / "long.jsonl").write_text(json.dumps({"prompt": text, "answer": "0"}) + "\n")
        (place / "long.toml").write_text(CONFIG.format(ranks=ranks, sampled=SAMPLED))
        command = [sys.executable, "-m", "astraflow_runtime", "run", "long.toml", "--no-live"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (
            subprocess.Popen(command, cwd=place, stdout=sys.stderr, env=environment) as process,
            _watched(process.pid) as memory,
        ):
            code = process.wait(TIMEOUT_S)
        if code:
            raise RuntimeError(f"the run with {tokens} tokens at {ranks} ranks ended with {code}")
        (directory,) = (place / "runs").iterdir()
        summary = json.loads((directory / "summary.json").read_text())
        line = (directory / "metrics.jsonl").read_text().splitlines()[0]
        cpu = {each["name"]: each["cpu_s"] for each in summary["process_details"]}
        return LongRun(memory, cpu, json.loads(line)["metrics"])


@contextlib.contextmanager
def _watched(root: int) -> Iterator[dict[str, float]]:
    """Role → most resident memory, in MB, of one process of that role below ``root`` while the block runs."""
    found: dict[str, float] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(EVERY_S):
            for pid in _below(root):
                with contextlib.suppress(OSError, IndexError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    status = Path(f"/proc/{pid}/status").read_text()
                    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
                    for mark, role in ROLES.items():
                        if mark in command.decode() and "torch.distributed" not in command.decode():
                            found[role] = max(found.get(role, 0.0), peak)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def _below(root: int) -> list[int]:
    """Processes that ``root`` has started, and those that these have."""
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def _per_token(base: LongRun, full: LongRun, tokens: int) -> dict[str, float]:
    return {role: (full.memory[role] - base.memory[role]) * 1e6 / tokens for role in full.memory}


def _above(base: LongRun, more: LongRun, what: str) -> float:
    name = "ranks" if what == "memory" else "trainer-solver"
    found: float = getattr(more, what)[name] - getattr(base, what)[name]
    return found
