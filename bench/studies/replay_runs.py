"""``row_ratio`` and ``token_ratio`` of :mod:`bench.studies.replay` as whole runs: ``python -m bench.studies.replay_runs SETTING SEEDS``.

A configuration, a reward and a model are written to a folder; ``astraflow run`` then makes two runs of each seed, which differ in the
key ``router_replay`` alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from astraflow_tiny_model.folder import write_tiny_model
from bench.studies.replay import FILE, SETTINGS, ReplaySetting, share_a_row, write

REWARD = '''
def counted(view):
    """The share of all characters that an answer may have that are the digit after their predecessor."""
    text = view.data["prompt"] + view.text
    right = sum(b.isdigit() and a.isdigit() and int(b) == (int(a) + 1) % 10 for a, b in zip(text[1:], text[2:]))
    return right / {tokens}
'''
RUN = """
[run]
name = "counting"
steps = {updates}
max_staleness = 0
group_size = {group}

[prompts]
use = "jsonl"
path = "prompts.jsonl"
answer_key = ""

[workflow]
use = "single_turn"

[reward]
use = "counting:counted"

[sampling]
max_tokens = {tokens}
temperature = 1.0

[policies.solver]
model = "model"
batch_sequences = {sequences}
router_replay = false

[policies.solver.engine]
use = "torch"
device = "cpu"
dtype = "bfloat16"

[policies.solver.trainer]
use = "torch"
device = "cpu"
lr = {lr}
warmup_steps = 0
schedule = "constant"
max_grad_norm = {max_grad_norm}
publish_dtype = "float32"

[policies.solver.transport]
use = "http"

[raas]
max_concurrent_episodes = {sequences}

[policies.solver.algorithm]
use = "{algorithm}"
"""


def main(name: str, seeds: int) -> None:
    """Make the runs that are not yet recorded, and record them."""
    for seed in range(seeds):
        for replayed in (False, True):
            if any((run["seed"], run["replay"]) == (seed, replayed) for run in recorded(name)[1]):
                continue
            with tempfile.TemporaryDirectory() as scratch:
                written(Path(scratch), SETTINGS[name], seed)
                run = {"seed": seed, "replay": replayed, **made(Path(scratch), seed, replayed)}
            print(seed, replayed, run["rewards"][-8:], run["cpu_s"], flush=True)
            found, runs = recorded(name)
            runs.append(run)
            write(found)


def recorded(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All that the file has, and in it the whole runs of a setting."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return found, found.setdefault(f"{name}, whole runs", [])


def written(folder: Path, setting: ReplaySetting, seed: int) -> None:
    """The files of the runs of a seed."""
    model = write_tiny_model(
        folder / "model",
        hidden=setting.hidden,
        ffn=32,
        layers=setting.layers,
        experts=setting.experts,
        top_k=setting.top_k,
        init_std=setting.init_std,
        seed=seed,
    )
    share_a_row(model / "model.safetensors", setting.common, seed)
    values = {name: getattr(setting, name) for name in setting.__dataclass_fields__}
    values["sequences"] = setting.groups * setting.group
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in setting.keys.items())
    (folder / "run.toml").write_text(RUN.format(**values) + keys, encoding="utf-8")
    (folder / "counting.py").write_text(REWARD.format(tokens=setting.tokens), encoding="utf-8")
    prompts = "".join(json.dumps({"prompt": f"{number:02}"}) + "\n" for number in range(100))
    (folder / "prompts.jsonl").write_text(prompts, encoding="utf-8")


def made(folder: Path, seed: int, replayed: bool) -> dict[str, Any]:
    """One run: the mean rewards of its updates, and what it cost."""
    command = [sys.executable, "-m", "astraflow_runtime", "run", "run.toml", "--no-live"]
    directory = folder / "runs"
    for key, value in (
        ("run.seed", str(seed)),
        ("run.directory", f"'{directory}'"),
        ("policies.solver.router_replay", str(replayed).lower()),
    ):
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=600, cwd=folder)
    (run,) = directory.iterdir()
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if "trained_reward" in line]
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "cpu_s": summary["cpu_s"],
        "rewards": [round(step["trained_reward"], 4) for step in steps],
        "second_moments": [round(step["metrics"]["second_moment"], 5) for step in steps],
        "gradients": [round(step["metrics"]["grad_norm"], 3) for step in steps],
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
