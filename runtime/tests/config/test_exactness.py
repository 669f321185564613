"""Runs that demand bitwise equal log-probs of pairs that cannot give them are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_core.errors import ConfigError
from astraflow_runtime.config.exactness import is_exact
from astraflow_runtime.config.loading import load_config

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.toml"
ENGINE, TRAINER = "policies.solver.engine", "policies.solver.trainer"
BOTH = [f"{ENGINE}.batch_invariant=true", f"{TRAINER}.batch_invariant=true"]


def test_the_pair_torch_and_torch_is_exact() -> None:
    assert is_exact(load_config(QUICKSTART, BOTH).config.policies["solver"])
    assert not is_exact(load_config(QUICKSTART).config.policies["solver"])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (BOTH[:1], f"{TRAINER}.batch_invariant: must be true too: {ENGINE} has"),
        (BOTH[1:], f"{ENGINE}.batch_invariant: must be true too: {TRAINER} has"),
        (
            [BOTH[1], f"{ENGINE}.use=hf"],
            "which 'hf' cannot provide; the pairs that can: engine 'torch' with trainer 'torch'",
        ),
        (
            [BOTH[0], f"{TRAINER}.use=fsdp", f"{TRAINER}.publish_dtype=bfloat16"],
            "which 'fsdp' cannot provide; the pairs that can: engine 'torch' with trainer 'torch'",
        ),
        ([*BOTH, f"{TRAINER}.device=cuda"], "same kind of device on both sides, not 'auto' and"),
        ([*BOTH, "policies.solver.router_replay=true"], "router_replay: batch_invariant does not"),
        ([*BOTH, f"{TRAINER}.publish_dtype=bfloat16"], 'needs publish_dtype = "float32", since'),
        ([*BOTH, f"{TRAINER}.compute_dtype=bfloat16"], 'needs compute_dtype = "float32"'),
        ([*BOTH, f"{TRAINER}.lora_rank=4"], "needs lora_rank = 0: an engine merges adapters"),
        ([*BOTH, f"{TRAINER}.layout=tree"], 'needs layout = "bucketed" or "packed"'),
        ([*BOTH, f"{TRAINER}.compile=true"], "needs compile = false"),
        ([*BOTH, f"{ENGINE}.dtype=bfloat16"], 'needs dtype = "float32"'),
        ([f"{ENGINE}.use=hf", *BOTH], "batch_invariant: unknown key"),
    ],
)
def test_a_combination_that_cannot_be_exact_is_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(QUICKSTART, overrides)
    assert expected in "\n".join(caught.value.problems)


def test_devices_may_have_other_numbers() -> None:
    load_config(QUICKSTART, [*BOTH, f"{ENGINE}.device=cuda:0", f"{TRAINER}.device=cuda:1"])
