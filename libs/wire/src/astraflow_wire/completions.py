"""Encodes a group whose episodes are one completion each, for a RaaS that has only lists of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Completion, Group, Sequence, Trajectory
from astraflow_core.types.trajectory import NOT_SAMPLED
from astraflow_wire.groups import encode_group
from astraflow_wire.messages import Task

Numbers = AbstractSequence[float] | npt.NDArray[np.generic]


@dataclass(frozen=True)
class Sampled:
    """What was sampled after a prompt: ``tokens`` int ``[T]``; ``logprobs`` float ``[T]``, of the distribution
    that was sampled from; ``versions`` int ``[T]``, that sampled each; the episode's ``reward``; ``truncated``
    by the token limit, that is without an end of sequence."""

    tokens: Numbers
    logprobs: Numbers
    versions: Numbers
    reward: float
    truncated: bool = False


def encode_completions(
    raas: str,
    task: Task,
    policy: str,
    prompt: Numbers,
    episodes: Iterable[Sampled],
    *,
    incarnation: int,
) -> bytes:
    """The body of ``POST /v1/groups`` for ``task``, by the ``incarnation`` that ``raas`` registered as: each episode is ``prompt`` (token ids int ``[P]``), which is
    not trained, and what ``policy`` sampled after it. ValueError if the columns of an episode differ in length, or
    hold what is not a number of int32 (tokens, versions) or float32 (log-probs).
    """
    trajectories = tuple(_trajectory(policy, prompt, episode) for episode in episodes)
    group = Group(task.id, task.prompt_id, trajectories)
    return encode_group(group, raas, incarnation=incarnation, eval_set=task.eval_set)


def _trajectory(policy: str, prompt: Numbers, sampled: Sampled) -> Trajectory:
    sizes = [len(column) for column in (sampled.tokens, sampled.logprobs, sampled.versions)]
    if len(set(sizes)) > 1:
        raise ValueError(f"tokens, log-probs and versions of {sizes} elements; expected one length")
    given, total = len(prompt), len(prompt) + sizes[0]
    logprobs, versions = np.zeros(total, np.float32), np.full(total, NOT_SAMPLED, np.int32)
    try:
        tokens = np.concatenate([np.asarray(ids, np.int32) for ids in (prompt, sampled.tokens)])
        logprobs[given:], versions[given:] = sampled.logprobs, sampled.versions
    except (TypeError, OverflowError) as error:
        raise ValueError(
            f"a token, log-prob or version is not a number of the type of its column: {error}"
        ) from error
    sequence = Sequence(policy, tokens, np.arange(total) >= given, logprobs, versions)
    reason = "length" if sampled.truncated else "stop"
    completion = Completion(policy, "", tokens[given:], reason)
    return Trajectory((sequence,), (completion,), {policy: sampled.reward})
