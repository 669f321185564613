"""Groups of our RaaS as results of the public protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.messages import SamplingMessage

COPIED = ("query_id", "source", "prompt_id")
KNOWN = ("max_new_tokens", "temperature", "top_p", "top_k", "greedy", "stop")


def public_result(group: ReceivedGroup, data: Mapping[str, Any], numbers: Mapping[str, int]) -> Any:
    """The result of a task; ``numbers``: policy → number of its model. ``None`` if every episode was rejected."""
    count = group.header.trajectories
    if not count:
        return None
    trajectories: list[dict[str, Any]] = [{"sequences": []} for _ in range(count)]
    rewards, own = np.zeros(count, np.float32), np.zeros(count, np.float32)
    for index, told in enumerate(group.header.sequences):
        part = slice(int(group.offsets[index]), int(group.offsets[index + 1]))
        trained = group.loss_mask[part].astype(np.int32)
        sequence = {
            "input_ids": group.tokens[part],
            "loss_mask": trained,
            "logprobs": group.logprobs[part],
            "versions": group.versions[part],
            "attention_mask": np.ones(len(trained), np.bool_),
        }
        if len(numbers) > 1:
            models = np.where(trained == 1, numbers[told.policy], -1)
            sequence["model_ids"] = models.astype(np.int32)
        row: dict[str, Any] = {name: column[None, :] for name, column in sequence.items()}
        if told.own_reward:
            own[told.trajectory] += told.reward
            row["rewards"] = np.array([told.reward], np.float32)
        else:
            rewards[told.trajectory] = told.reward
        trajectories[told.trajectory]["sequences"].append(row)
    copied = {key: data[key] for key in COPIED if key in data}
    return {"n_trajs": count, "rewards": rewards + own, "trajectories": trajectories, **copied}


def sampling_of(overrides: Mapping[str, Any], default: SamplingMessage) -> SamplingMessage:
    """The sampling that ``gconfig_overrides`` ask for; what they do not name is as in the run. ValueError for keys that
    are not known."""
    if unknown := sorted(overrides.keys() - set(KNOWN)):
        raise ValueError(f"gconfig_overrides has {unknown[0]!r}; known are {', '.join(KNOWN)}")
    greedy = overrides.get("greedy") is True
    stop = overrides.get("stop", default.stop)
    return SamplingMessage(
        max_tokens=int(overrides.get("max_new_tokens", default.max_tokens)),
        temperature=0.0 if greedy else float(overrides.get("temperature", default.temperature)),
        top_p=float(overrides.get("top_p", default.top_p)),
        top_k=max(0, int(overrides.get("top_k", default.top_k))),
        min_p=default.min_p,
        stop=[str(text) for text in ([stop] if isinstance(stop, str) else stop)],
    )
