"""Launches ranks, and compares what they found with what ``torch`` makes of the same batches alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from megatron_cases import LR, SEED, STEPS, Course, make_batch, of_step, write_model
from transformers import AutoModelForCausalLM

MEGATRON = pytest.mark.turns(
    "plugins/trainers/megatron/src/**/*.py",
    "plugins/trainers/megatron/tests/conftest.py",
    "plugins/trainers/megatron/tests/megatron_*.py",
    "plugins/trainers/torch/src/**/*.py",
    "libs/torch_training/src/**/*.py",
    "libs/torch_weights/src/**/*.py",
    "libs/training/src/**/*.py",
)
"""What the tests of several ranks are about."""
DEADLINE_S = 500.0
Keys = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A model, and what it is trained with, by every trainer alike; ``routed``: batches have recorded experts."""

    model: str
    algorithm: str = "grpo"
    keys: Keys = field(default_factory=dict)
    routed: bool = False


@dataclass(frozen=True)
class Case:
    """A :data:`KINDS` trained with ``keys``, and the keys it is resharded to."""

    kind: str
    keys: Keys
    elsewhere: Keys


KINDS = {
    "qwen3": Kind("qwen3"),
    "llama": Kind("llama"),
    "critic": Kind("qwen3", "ppo"),
    "experts": Kind("qwen3_moe"),
    "routed": Kind("qwen3_moe", routed=True),
    "adapters": Kind("llama", keys={"lora_rank": 3, "lora_alpha": 5.0}),
}
REPLICAS: Keys = {}
TENSOR: Keys = {"tensor_parallel": 2}
SEQUENCE: Keys = {"tensor_parallel": 2, "sequence_parallel": True}
PIPELINE: Keys = {"pipeline_parallel": 2}
EXPERT: Keys = {"expert_parallel": 2}
RECOMPUTED: Keys = {"gradient_checkpointing": True}
LAUNCHES: dict[int, tuple[Case, ...]] = {
    2: (
        Case("qwen3", TENSOR, PIPELINE),
        Case("llama", TENSOR, REPLICAS),
        Case("critic", TENSOR, PIPELINE),
        Case("qwen3", PIPELINE, REPLICAS),
        Case("llama", PIPELINE, TENSOR),
        Case("critic", PIPELINE, TENSOR),
        Case("routed", PIPELINE | RECOMPUTED, EXPERT),
        Case("qwen3", REPLICAS, TENSOR),
        Case("llama", REPLICAS, PIPELINE),
        Case("experts", EXPERT, REPLICAS),
        Case("qwen3", SEQUENCE, PIPELINE),
        Case("critic", SEQUENCE, TENSOR),
        Case("adapters", TENSOR, REPLICAS),
        Case("adapters", PIPELINE, SEQUENCE),
    ),
    4: (
        Case("qwen3", TENSOR, PIPELINE),
        Case("llama", SEQUENCE, TENSOR | PIPELINE),
        Case("adapters", SEQUENCE, SEQUENCE | PIPELINE),
        Case("routed", EXPERT | PIPELINE, EXPERT),
    ),
}
"""By number of ranks, which all cases of a launch share: to import everything takes longer than a case."""
SAME = (
    ("twice", "a resume"),
    ("unchanged", "a refused step"),
    ("back", "two changes of the ranks' layout"),
)


def write_reference(folder: Path) -> Path:
    """For each model: its folder, the batches, and what ``torch`` makes of them."""
    for name, kind in KINDS.items():
        (folder / name).mkdir()
        model = write_model(folder / name / "model", kind.model)
        course = Course("torch", kind.keys, model, folder, algorithm=kind.algorithm)
        start_adapters(course)
        batches = [course.sampled(n, kind.routed) for n in range(STEPS)]
        behaviour: dict[str, Any] = {str(n): b.logprobs for n, b in enumerate(batches)}
        if kind.routed:
            behaviour |= {f"routed/{n}": b.routed_experts for n, b in enumerate(batches)}
        np.savez(folder / name / "behaviour.npz", **behaviour)
        found: dict[str, Any] = {}
        norms, losses = [], []
        for number, batch in enumerate(batches):
            found[f"logprobs/{number}"] = course.trainer.logprobs(batch, "current")
            found[f"logprobs/gradients/{number}"] = course.trainer.logit_gradients(batch)
            if (values := course.values(batch)) is not None:
                found[f"values/{number}"] = values
            metrics = course.step(batch, number)
            norms.append(metrics["grad_norm"])
            losses.append(metrics["loss"])
            found |= of_step(course, number)
        found |= {"norms": norms, "losses": losses}
        found |= {f"after/{tensor}": value for tensor, value in course.weights().items()}
        np.savez(folder / name / "expected.npz", **found)
        course.trainer.close()
    return folder


@torch.no_grad()
def start_adapters(course: Course) -> None:
    """Where those of ``megatron`` start, in a trainer ``torch``."""
    from astraflow_plugin_megatron.weights.adapters import initial
    from astraflow_torch_training.lora import adapted

    for name, layer in adapted(course.trainer._model.whole):
        rank = len(layer.lora_A)
        low, high = initial(name, rank, tuple(layer.weight.shape), SEED)
        layer.lora_A.copy_(low)
        assert torch.equal(layer.lora_B, high)


def same_steps_as_one(ranks: int, reference: Path, folder: Path) -> None:
    """Launch so many ranks in ``folder`` and hold them to the ``reference``, case by case."""
    cases = {f"{number}-{case.kind}": case for number, case in enumerate(LAUNCHES[ranks])}
    for name, case in cases.items():
        shutil.copytree(reference / case.kind, folder / name)
    launch(folder, ranks, cases)
    for name, case in cases.items():
        expected = np.load(folder / name / "expected.npz")
        found = np.load(folder / name / "found.npz")
        shown = f"{case.kind} with {case.keys}"
        compare(shown, expected, found)
        as_transformers_says(folder / name, found["final"])
        read_by_one_rank(shown, case, folder / name, found)


def compare(kind: str, expected: Any, found: Any) -> None:
    """The bounds of the specification, and bitwise where there is only one way."""
    weights = [name for name in expected if name.startswith("after/")]
    assert {n for n in found if n.startswith("after/")} == set(weights), kind
    for name in weights:
        apart = np.abs(expected[name] - found[name]).max()
        assert apart <= 0.05 * LR * STEPS, f"{kind}: {name} is {apart:.2e} apart"
        bare = name.removeprefix("after/")
        for other, what in SAME:
            assert np.array_equal(found[f"{other}/{bare}"], found[name]), f"{kind}: {bare}, {what}"
        assert np.array_equal(found[f"read/{bare}"], found[f"saved/{bare}"]), (
            f"{kind}: {bare}, read"
        )
        apart = np.abs(expected[name] - found[f"elsewhere/{bare}"]).max()
        assert apart <= 0.05 * LR * STEPS, f"{kind}: {name} is {apart:.2e} apart once resharded"
    again = expected["norms"][-len(found["resharded norms"]) :]
    np.testing.assert_allclose(found["resharded norms"], again, rtol=1e-4, err_msg=kind)
    np.testing.assert_allclose(found["norms"], expected["norms"], rtol=1e-4, err_msg=kind)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-4, atol=1e-6)
    told = [name for name in expected if name.startswith(("logprobs/", "values/"))]
    assert len(told) >= STEPS and set(told) <= set(found)
    for name in told:
        apart = np.abs(expected[name] - found[name]).max()
        assert apart <= 1e-5, f"{kind}: {name} before that step are {apart:.2e} apart"


def read_by_one_rank(kind: str, case: Case, folder: Path, found: Any) -> None:
    """What several ranks saved, a trainer of one rank reads."""
    trained = KINDS[case.kind]
    course = Course("megatron", trained.keys, folder / "model", folder, algorithm=trained.algorithm)
    course.trainer.load(folder / "checkpoint")
    for name, value in course.weights().items():
        assert np.array_equal(value, found[f"saved/{name}"]), f"{kind}: {name}, read by one rank"
    course.trainer.close()


def as_transformers_says(folder: Path, final: Any) -> None:
    """The model that was left loads, and gives the log-probs that the trainer gave."""
    batch = make_batch(0)
    model = AutoModelForCausalLM.from_pretrained(folder / "left", dtype=torch.float32)
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None]).logits[0, :-1] / batch.temperature
        logprobs = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0].numpy()
        np.testing.assert_allclose(final[start + 1 : end], logprobs, atol=1e-5)


def launch(folder: Path, ranks: int, cases: dict[str, Case]) -> None:
    """Run the ranks; they meet at a store of this process, as at torchrun's. Fails with their logs."""
    told = {
        name: {
            "keys": KINDS[case.kind].keys | case.keys,
            "elsewhere": KINDS[case.kind].keys | case.elsewhere,
            "algorithm": KINDS[case.kind].algorithm,
        }
        for name, case in cases.items()
    }
    given = {"cases": told, "deadline_s": DEADLINE_S}
    (folder / "given.json").write_text(json.dumps(given))
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    script = Path(__file__).parent / "megatron_rank.py"
    processes: list[subprocess.Popen[bytes]] = []
    codes: list[int | None] = []
    try:
        for rank in range(ranks):
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (folder / f"rank{rank}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, str(script), str(folder)],
                        env=own,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            codes = [process.poll() for process in processes]
            if any(codes) or None not in codes:  # one that failed leaves the others waiting
                break
            time.sleep(0.2)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if any(code != 0 for code in codes):
        logs = "\n".join((folder / f"rank{rank}.log").read_text()[-3000:] for rank in range(ranks))
        pytest.fail(f"exit codes {codes}\n{logs}", pytrace=False)
