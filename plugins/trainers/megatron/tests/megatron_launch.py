"""Launches ranks, and compares what they found with what ``torch`` makes of the same batches alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from megatron_cases import LR, STEPS, Course, make_batch, write_model
from transformers import AutoModelForCausalLM

MODELS = ("qwen3", "llama")
DEADLINE_S = 500.0
LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "tensor": (2, {"tensor_parallel": 2}),
    "pipeline": (2, {"pipeline_parallel": 2}),
    "data": (2, {}),
    "tensor and data": (4, {"tensor_parallel": 2}),
}


def write_reference(folder: Path) -> Path:
    """For each model: its folder, the batches, and what ``torch`` makes of them."""
    for kind in MODELS:
        (folder / kind).mkdir()
        model = write_model(folder / kind / "model", kind)
        course = Course("torch", {}, model, folder)
        batches = [course.sampled(n) for n in range(STEPS)]
        behaviour: dict[str, Any] = {str(n): b.logprobs for n, b in enumerate(batches)}
        np.savez(folder / kind / "behaviour.npz", **behaviour)
        found: dict[str, Any] = {}
        norms, losses = [], []
        for number, batch in enumerate(batches):
            found[f"logprobs/{number}"] = course.trainer.logprobs(batch, "current")
            metrics = course.step(batch, number)
            norms.append(metrics["grad_norm"])
            losses.append(metrics["loss"])
        found |= {"norms": norms, "losses": losses}
        found["final"] = course.trainer.logprobs(batches[0], "current")
        found |= {f"after/{name}": value for name, value in course.weights().items()}
        np.savez(folder / kind / "expected.npz", **found)
        course.trainer.close()
    return folder


def same_steps_as_one(layout: str, reference: Path, folder: Path) -> None:
    """Launch the ranks of ``layout`` in ``folder`` and hold them to the ``reference``."""
    ranks, keys = LAYOUTS[layout]
    shutil.copytree(reference, folder)
    launch(folder, ranks, keys)
    for kind in MODELS:
        expected = np.load(folder / kind / "expected.npz")
        found = np.load(folder / kind / "found.npz")
        compare(kind, expected, found)
        as_transformers_says(folder / kind, found["final"])


def compare(kind: str, expected: Any, found: Any) -> None:
    """The bounds of the specification, and bitwise where there is only one way."""
    weights = [name for name in expected if name.startswith("after/")]
    assert {n for n in found if n.startswith("after/")} == set(weights), kind
    for name in weights:
        apart = np.abs(expected[name] - found[name]).max()
        assert apart <= 0.05 * LR * STEPS, f"{kind}: {name} is {apart:.2e} apart"
        bare = name.removeprefix("after/")
        for other, what in (("twice", "a resume"), ("unchanged", "a refused step")):
            assert np.array_equal(found[f"{other}/{bare}"], found[name]), f"{kind}: {bare}, {what}"
    np.testing.assert_allclose(found["norms"], expected["norms"], rtol=1e-4, err_msg=kind)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-4, atol=1e-6)
    for number in range(STEPS):
        name = f"logprobs/{number}"
        apart = np.abs(expected[name] - found[name]).max()
        assert apart <= 1e-5, f"{kind}: log-probs before step {number} are {apart:.2e} apart"


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


def launch(folder: Path, ranks: int, keys: dict[str, Any]) -> None:
    """Run the ranks; they meet at a store of this process, as at torchrun's. Fails with their logs."""
    given = {"models": MODELS, "keys": keys, "deadline_s": DEADLINE_S}
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
