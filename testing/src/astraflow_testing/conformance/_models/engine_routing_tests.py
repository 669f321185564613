"""Tests of an engine that declares ``router_replay``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_testing.conformance._checks import capability
from astraflow_testing.conformance._models import qwen3
from astraflow_testing.conformance._models.engine_rig import DEMANDS, PROMPT, Served, serve
from astraflow_testing.conformance._models.qwen3 import LAYERS, TOP_K
from astraflow_testing.conformance.subject import Subject


class EngineRoutingTests:
    """Part of :class:`astraflow_testing.conformance.engine.EngineConformance`."""

    deadline_s: float

    @pytest.fixture
    def expert_model(self, tmp_path: Path) -> Path:
        """The folder of a model with experts, in the Qwen3-MoE architecture."""
        return qwen3.write_expert_model(tmp_path / "experts", init_std=0.3)

    @capability("router_replay")
    def test_routed_experts_are_those_of_every_token_read(
        self, component: Subject, expert_model: Path, tmp_path: Path
    ) -> None:
        async def scenario(served: Served) -> None:
            sent = [
                served.launch(
                    Sampling(5 + 4 * number, ignore_eos=True),
                    (*PROMPT, *range(2, 2 + number // 2)),
                    routing=number != 1,
                )
                for number in range(6)
            ]
            for number, one in enumerate(sent):
                result = await one.task
                if number == 1:
                    DEMANDS.that(
                        result.routed_experts is None,
                        "a request that did not ask for routing has routed_experts",
                        "routed_experts are None unless the request asked for them",
                    )
                else:
                    examine_routing(expert_model, one.request, result)

        serve(component, expert_model, tmp_path, self.deadline_s, scenario)


def examine_routing(model: Path, request: GenerateRequest, result: GenerateResult) -> None:
    """Fail unless the routed experts are those that an independent forward pass chooses."""
    read = np.concatenate([request.prompt, result.tokens[:-1]])
    given, shape = result.routed_experts, (len(read), LAYERS, TOP_K)
    found = "nothing" if given is None else f"{given.dtype} {list(given.shape)}"
    DEMANDS.that(
        given is not None and given.shape == shape and given.dtype == np.uint8,
        f"routed_experts of {len(request.prompt)} + {len(result.tokens)} tokens are {found}",
        f"uint8 {list(shape)}: of the prompt and all sampled tokens except the last",
    )
    assert given is not None
    experts = qwen3.ExpertChoice()
    qwen3.logits(model, [(model / "model.safetensors", read)], experts)
    expected = np.sort(np.stack(experts.chosen, 1), -1)
    wrong = (np.sort(given, -1) != expected).any((1, 2))
    DEMANDS.that(
        not wrong.any(),
        f"{wrong.sum()} of {len(read)} tokens have other experts than an independent forward pass chooses, the first is "
        f"number {int(np.argmax(wrong))}",
        "routed_experts[i] are the experts of token i of prompt and completion",
    )
