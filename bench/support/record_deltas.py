"""Trains a small real model with the trainer `torch` and records how its published bf16 weights change.

``python -m bench.support.record_deltas MODEL_FOLDER [--steps N]`` writes, for each learning rate,
``bench/recorded/smollm2_lr*.delta``, the link of the last step with one block in :data:`KEPT`, and
``bench/recorded/smollm2.json``, what each step changed in the whole model. Rollouts are 4 prompts of one product
each, 8 answers a prompt, sampled once from the initial model; GRPO, one optimizer step a version.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import ComponentTable
from astraflow_core.types import Batch
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.kernels import load_kernel
from astraflow_plugin_delta.companion import DeltaCompanion
from astraflow_plugin_delta.link import open_index, open_link, pack_link
from astraflow_testing.conformance.subject import context
from astraflow_weights.snapshot import Snapshot, Snapshotter
from bench.support.entropy import Seen

RATES = ("1e-6", "5e-6")
KEPT = 16
FOLDER = Path(__file__).parents[1] / "recorded"
PROMPTS, GROUP, SAMPLED = 4, 8, 16


def rollouts(folder: Path) -> Batch:
    """Answers of the initial model, half a point for a number and one for the right one."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    torch.manual_seed(0)
    rows, rewards, logprobs, starts = [], [], [], []
    for index in range(PROMPTS):
        a, b = index + 3, 7 - index
        said = [{"role": "user", "content": f"What is {a} times {b}? Answer with the number."}]
        prompt = tokenizer.apply_chat_template(
            said, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.no_grad():
            out = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                num_return_sequences=GROUP, max_new_tokens=SAMPLED, pad_token_id=0,
            )  # fmt: skip
            spread = torch.log_softmax(model(out).logits.float(), -1)
        for answer, each in zip(out, spread, strict=True):
            text = tokenizer.decode(answer[prompt.shape[1] :], skip_special_tokens=True)
            rewards.append(1.0 if str(a * b) in text else 0.5 * any(c.isdigit() for c in text))
            rows.append(answer.numpy().astype(np.int32))
            starts.append(prompt.shape[1])
            chosen = each[:-1].gather(1, answer[1:, None])[:, 0].numpy()
            logprobs.append(np.concatenate([[0], chosen]).astype(np.float32))
    masks = [np.arange(len(row)) >= start for row, start in zip(rows, starts, strict=True)]
    grouped = np.array(rewards, np.float32).reshape(PROMPTS, GROUP)
    mask = np.concatenate(masks)
    return Batch(
        id="b", policy="solver", version=1,
        lengths=np.array([len(row) for row in rows], np.int32),
        tokens=np.concatenate(rows), loss_mask=mask,
        logprobs=np.where(mask, np.concatenate(logprobs), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32), rewards=grouped.ravel(),
        group=np.repeat(np.arange(PROMPTS), GROUP), trajectory=np.arange(len(rows)),
        group_size=np.full(len(rows), GROUP, np.int32),
        group_mean=np.repeat(grouped.mean(1), GROUP), group_std=np.repeat(grouped.std(1, ddof=1), GROUP),
    )  # fmt: skip


def record(folder: Path, rate: str, batch: Batch, steps: int) -> list[dict[str, float]]:
    """Train, and note what each step changed."""
    codec = Codec(load_kernel("auto"))
    companion = DeltaCompanion(codec, 1)
    snapshotter = Snapshotter("solver", companion.block)
    seen: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        here = context("trainer", Path(scratch))
        table: dict[str, Any] = {"use": "torch", "lr": float(rate), "publish_dtype": "bfloat16"}
        trainer: Any = Catalog.discover().build(
            "trainer",
            ComponentTable(**table),
            here,
        )
        algorithm: Any = Catalog.discover().build("algorithm", ComponentTable(use="grpo"), here)
        trainer.setup(folder, steps, frozenset())
        batch = replace(batch, advantages=algorithm.advantages(batch))
        batch = replace(batch, weights=algorithm.weights(batch))
        previous: Snapshot | None = None
        for step in range(steps + 1):
            if step:
                trainer.step(batch, algorithm, step)
            companion.begin(previous)
            snapshot = snapshotter.take(step, trainer.export(), None)
            objects = companion.objects(snapshot)
            if previous is not None:
                seen.append(note(codec, previous, snapshot, objects, rate))
                print(rate, step, seen[-1], flush=True)
                snapshotter.recycle(previous.data)
            previous = snapshot
        trainer.close()
    companion.close()
    return seen


def note(codec: Codec, old: Snapshot, new: Snapshot, objects: Any, rate: str) -> dict[str, float]:
    """What changed between two versions, in numbers; some blocks of it, as steps, are written down."""
    (entry,) = open_index(objects["links"])
    head = open_link(memoryview(objects[entry.name]), entry).head
    total, kept = Seen(), []
    for block in range(len(new.manifest.blocks)):
        part = slice(block * head.block_size, (block + 1) * head.block_size)
        changes = codec.diff(old.data[part], new.data[part], 2)
        total.add(changes.elements, changes.steps)
        if block % KEPT == 1:
            kept.append((block, codec.encode(changes, None, block)))
    total.size = entry.size
    data = pack_link(msgspec.structs.replace(head, table=b""), kept)
    (FOLDER / f"smollm2_lr{rate}.delta").write_bytes(data)
    return total.figures()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    batch = rollouts(arguments.folder)
    print("rewards", batch.rewards.reshape(PROMPTS, GROUP).tolist(), flush=True)
    found = {rate: record(arguments.folder, rate, batch, arguments.steps) for rate in RATES}
    (FOLDER / "smollm2.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
