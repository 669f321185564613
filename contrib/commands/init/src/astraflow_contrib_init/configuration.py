"""The text of a configuration: a recipe's task, and what the hardware decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astraflow_contrib_init.choices import Choices
from astraflow_contrib_init.recipes import RecipeTask, task_of
from astraflow_contrib_init.text import comment, table

_CPU_GROUP, _GPU_GROUP = 8, 16


def configuration(choices: Choices, file: Path) -> dict[Path, str]:
    """Files to write, and their contents; ``file`` is the configuration itself."""
    folder = file.resolve().parent
    task = task_of(choices, folder)
    parts = [
        _head(choices, file),
        _run(choices),
        _task(task),
        _policy(choices),
        _pool(choices),
        _evaluation(task, choices),
    ]
    return {file: "\n".join(parts), **{file.parent / n: text for n, text in task.files.items()}}


def _head(choices: Choices, file: Path) -> str:
    lines = [f"astraflow run {file.name}", f"recipe: {choices.recipe}"]
    lines.append(
        f"Check it first: `astraflow doctor {file.name}`. What a key means: `astraflow config explain KEY`."
    )
    if choices.gpus:
        lines.append("Once, before the first run: astraflow env create vllm --plugin vllm")
    return comment("\n".join(lines))


def _run(choices: Choices) -> str:
    one_gpu = choices.gpus == 1
    entries: dict[str, Any] = {
        "name": choices.name,
        "seed": 0,
        "steps": (choices.steps, "updates"),
        "max_staleness": (0, "exactly on-policy")
        if one_gpu
        else (1, "versions that a trained token may lag behind; more overlap, less on-policy"),
        "group_size": (
            _GPU_GROUP if choices.gpus else _CPU_GROUP,
            "samples of each prompt, compared with each other",
        ),
    }
    if one_gpu:
        entries["colocated"] = (True, "engine and trainer take turns on the GPU")
    if not choices.gpus:
        entries["episode_deadline_s"] = (600, "a language model on a CPU takes its time")
        entries["lease_s"] = 120
        entries["deadline_s"] = 900
    return table("run", "How long, and how asynchronous.", entries)


def _task(task: RecipeTask) -> str:
    parts = [
        table("prompts", task.prompts_note, {**task.prompts, "split": "train"}),
        table("workflow", task.workflow_note, task.workflow),
    ]
    parts += [table(name, note, keys) for name, (note, keys) in task.tables.items()]
    if task.reward is not None:
        parts.append(table("reward", task.reward_note, task.reward))
    sampling = {"max_tokens": (task.max_tokens, "of one completion"), "temperature": 1.0}
    parts.append(table("sampling", "How the policy samples.", sampling))
    return "\n".join(parts)


def _policy(choices: Choices) -> str:
    prefix = "policies.solver"
    batch = 256 if choices.gpus else 32
    group = _GPU_GROUP if choices.gpus else _CPU_GROUP
    engine, trainer = _backends(choices.gpus)
    return "\n".join(
        [
            table(
                prefix,
                "The model that learns.",
                {
                    "model": choices.model,
                    "batch_sequences": (
                        batch,
                        f"of one update: {batch // group} prompts x {group} samples",
                    ),
                    "data": (
                        [{"use": "dynamic_sampling"}],
                        "drops groups whose rewards are all equal",
                    ),
                },
            ),
            table(
                f"{prefix}.engine",
                "What samples. `astraflow plugins` lists what is installed.",
                engine,
            ),
            table(f"{prefix}.trainer", "What updates the weights.", trainer),
            table(
                f"{prefix}.algorithm",
                "The loss. Others: docs/configuration.md, section Algorithms.",
                {"use": "grpo", "clip_high": 0.28},
            ),
            table(f"{prefix}.transport", "How new weights reach the engines.", {"use": "auto"}),
        ]
    )


def _backends(gpus: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of engine and trainer. With several GPUs the first half trains, and each of the others samples."""
    learning: dict[str, Any] = {
        "lr": (1e-6 if gpus else 1e-5, "peak learning rate"),
        "warmup_steps": 5,
    }
    if not gpus:
        # In float32, since most CPUs compute bfloat16 several times slower.
        trainer = {"use": "torch", **learning, "micro_batch_tokens": 1024}
        return {"use": "torch"}, {**trainer, "publish_dtype": "float32"}
    learning["compute_dtype"] = "bfloat16"
    vllm: dict[str, Any] = {"use": "vllm", "python": ("env:vllm", "a separate interpreter")}
    if gpus == 1:
        engine = {**vllm, "sleep_mode": (True, "frees the GPU for the trainer")}
        return engine, {"use": "torch", **learning, "offload_weights": True}
    ranks = gpus // 2
    sampling = [str(n) for n in range(ranks, gpus)]
    engine = {**vllm, "replicas": len(sampling), "devices": (sampling, "GPU of each replica")}
    if ranks == 1:
        return engine, {"use": "torch", "device": "cuda:0", **learning}
    return engine, {"use": "fsdp", "ranks": (ranks, "on the first GPUs"), **learning}


def _pool(choices: Choices) -> str:
    episodes = 256 if choices.gpus else 32
    return table(
        "raas",
        "The rollout services.",
        {"replicas": 1, "max_concurrent_episodes": (episodes, "of each service")},
    )


def _evaluation(task: RecipeTask, choices: Choices) -> str:
    size = {} if choices.data is not None else {"size": 64}
    return "\n".join(
        [
            table(
                "eval",
                "Greedy accuracy on held-out prompts, before the first update and then regularly.",
                {"every": (20, "updates")},
            ),
            table(
                "eval.sets.held_out",
                "Never trained.",
                {**task.prompts, **size, "split": "held_out"},
            ),
        ]
    )
