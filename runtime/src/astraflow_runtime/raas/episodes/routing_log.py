"""The experts that an engine chose for the tokens of a task, and which of them belong to a sequence.

Workflows do not see them: what an engine returned is found again by the token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import PluginError
from astraflow_core.types import GenerateResult, Sequence, Trajectory
from astraflow_core.types.generation import RoutedExperts, not_recorded
from astraflow_wire.experts.layers import ExpertLayers


class RoutingLog:
    """The requests of the episodes of a task to the engines of ``policy``, whose model has ``experts``."""

    def __init__(self, policy: str, experts: ExpertLayers) -> None:
        self._policy, self._experts = policy, experts
        self._calls: list[tuple[npt.NDArray[np.int32], int, RoutedExperts]] = []

    def add(self, prompt: npt.NDArray[np.int32], result: GenerateResult) -> None:
        """A request and its result. :class:`PluginError` if the engine returned no such array as it has to."""
        if not len(result.tokens):
            return
        given, model = result.routed_experts, self._experts
        shape = (len(prompt) + len(result.tokens) - 1, model.layers, model.top_k)
        if given is None or given.shape != shape or given.dtype != model.dtype:
            found = "nothing" if given is None else f"{given.dtype} {list(given.shape)}"
            raise PluginError(
                f"the engine of policy {self._policy!r} gave {found} as routed_experts of a prompt of {len(prompt)} and "
                f"{len(result.tokens)} sampled tokens; expected {model.dtype} {list(shape)}, as its model has "
                f"{model.layers} layers with {model.experts} experts and chooses {model.top_k}; leave router_replay out, "
                "or name another engine"
            )
        self._calls.append((np.concatenate([prompt, result.tokens]), len(prompt), given))

    def of(self, tokens: npt.NDArray[np.int32]) -> RoutedExperts | None:
        """Those of a sequence ``[T, layers, top_k]``, whose last token was not read; ``None`` if no request belongs
        to it.

        A request belongs to a sequence that begins with its prompt and what was sampled, or ends amid that, cut at a
        stop. A token has the experts with which it was read first: in a later turn its hidden state is computed again,
        perhaps by a newer version, but the token after it was sampled from the first one.
        """
        found: RoutedExperts | None = None
        done, size = 0, len(tokens)

        def order(call: tuple[npt.NDArray[np.int32], int, RoutedExperts]) -> tuple[int, bool, int]:
            return call[1], len(call[0]) > size, -len(call[0])

        for whole, given, routed in sorted(self._calls, key=order):
            shared = min(len(whole), size)
            end = min(len(routed), size - 1)
            if end <= done or shared <= given or whole[shared - 1] != tokens[shared - 1]:
                continue
            if not np.array_equal(whole[:shared], tokens[:shared]):
                continue
            if found is None:
                shape = (size, self._experts.layers, self._experts.top_k)
                found = np.full(shape, not_recorded(self._experts.dtype), self._experts.dtype)
            found[done:end] = routed[done:end]
            done = end
        return found


def with_routing(trajectory: Trajectory, logs: Mapping[str, RoutingLog]) -> Trajectory:
    """The trajectory with the routed experts of each sequence of a policy that has a log and that the workflow gave
    none."""
    if not logs:
        return trajectory
    sequences = [
        replace(each, routed_experts=logs[each.policy].of(each.tokens))
        if each.policy in logs and each.routed_experts is None
        else each
        for each in trajectory.sequences
    ]
    return replace(trajectory, sequences=tuple(sequences))


def problem_of(sequence: Sequence, experts: ExpertLayers | None) -> str:
    """What is wrong with the routed experts that a workflow gave, as the end of a sentence about the sequence."""
    given = sequence.routed_experts
    if given is None:
        return ""
    if experts is None:
        return (
            "with routed_experts, which this run does not record; set router_replay of its policy"
        )
    shape = (len(sequence.tokens), experts.layers, experts.top_k)
    if given.shape == shape and given.dtype == experts.dtype:
        return ""
    return f"whose routed_experts are {given.dtype} {list(given.shape)}; expected {experts.dtype} {list(shape)}"
