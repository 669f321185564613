"""`evaluate_loss`: the values of golden.json, padded or packed, for algorithms of others too; what it refuses."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from astraflow_core.errors import UserError
from astraflow_runtime import evaluate_loss

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
GOLDEN = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))["cases"]
KEYS: dict[str, dict[str, Any]] = {
    "grpo (defaults)": {},
    "grpo (kl_coef = 0.05, entropy_coef = 0.01, clip_high = 0.28)": {
        "kl_coef": 0.05,
        "entropy_coef": 0.01,
        "clip_high": 0.28,
    },
}


def arrays(given: dict[str, Any]) -> dict[str, Any]:
    sizes = [3, 1, 2, 2]
    of_tokens = ("logprobs", "loss_mask", "reference", "entropy", "versions")
    return {
        **{name: np.array(given[name]) for name in of_tokens if name in given},
        "current": np.array(given["current_logprobs"]),
        "rewards": given["rewards"],
        "lengths": given["lengths"],
        "group": np.repeat(np.arange(4), sizes),
    }


@pytest.mark.parametrize("variant", KEYS)
def test_the_golden_values_come_back(variant: str) -> None:
    for case in (case for case in GOLDEN if case["variant"] == variant):
        found = evaluate_loss("grpo", KEYS[variant], arrays(case["given"]), step=case["step"])
        expected = case["expected"]
        assert found.loss == pytest.approx(sum(expected["terms"].values()), rel=1e-5, abs=1e-7)
        for name, wanted in expected["terms"].items():
            assert found.terms[name] == pytest.approx(wanted, rel=1e-5, abs=1e-7)
        for name in ("clip_fraction", "approx_kl", "ratio_mean"):
            assert found.metrics[name] == pytest.approx(expected["metrics"][name], rel=1e-5)
        for got, wanted in (
            (found.advantages, expected["advantages"]),
            (found.gradients["logprobs"], expected["gradient"]),
            (found.weights["policy"], expected["weights"]["policy"]),
        ):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-7)
        assert 0 < found.metrics["ratio_ess"] <= 1


def packed(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    lengths = np.array([4, 2, 5, 3, 1, 4])
    total = int(lengths.sum())
    mask = rng.random(total) < 0.7
    mask[np.cumsum(lengths) - lengths] = True
    sampled = -0.1 - 2 * rng.random(total)

    def near() -> Any:
        return sampled + rng.uniform(-0.1, 0.1, total)

    return {
        "logprobs": sampled, "loss_mask": mask, "current": near(), "reference": near(),
        "proximal": near(), "values": rng.random(total), "predicted_values": rng.random(total),
        "entropy": rng.random(total), "logit_gradients": rng.random(total), "versions": rng.integers(3, 6, total), "lengths": lengths,
        "rewards": rng.random(6), "group": [0, 0, 1, 1, 1, 2], "trajectory": [0, 1, 2, 3, 3, 4],
    }  # fmt: skip


def padded(given: dict[str, Any]) -> dict[str, Any]:
    lengths = given["lengths"]
    row = np.repeat(np.arange(len(lengths)), lengths)
    place = np.concatenate([np.arange(length) for length in lengths])
    made: dict[str, Any] = {}
    for name, values in given.items():
        if name == "lengths":
            continue
        made[name] = values
        if name not in ("rewards", "group", "trajectory"):
            kind = np.asarray(values).dtype
            made[name] = np.full((len(lengths), lengths.max()), np.nan if kind.kind == "f" else 0)
            made[name] = made[name].astype(kind)
            made[name][row, place] = values
    return made


def test_padded_arrays_and_tensors_give_what_packed_ones_do() -> None:
    given = packed()
    square = padded(given)
    tensors = {name: torch.tensor(np.asarray(values)) for name, values in square.items()}
    tensors["current"].requires_grad_()
    mask = given["loss_mask"]
    for name, keys in (
        ("ppo", {"gae_scope": "trajectory"}),
        ("gspo", {"clip_low": 0.01, "kl_coef": 0.1, "entropy_coef": 0.1}),
        ("m2po", {}),
        ("decoupled_ppo", {}),
        ("flash_reinforce", {"delta": 0.002}),
        ("maxrl", {}),
        ("otb", {}),
    ):
        one = evaluate_loss(name, keys, given)
        for other in (evaluate_loss(name, keys, square), evaluate_loss(name, keys, tensors)):
            assert other.loss == pytest.approx(one.loss, rel=1e-9)
            assert other.metrics == pytest.approx(one.metrics, rel=1e-6)
            for leaf, slopes in one.gradients.items():
                assert other.gradients[leaf].shape == square["logprobs"].shape
                inside = other.gradients[leaf][square["loss_mask"]]
                np.testing.assert_allclose(inside, slopes[mask], rtol=1e-6, atol=1e-9)
                assert not other.gradients[leaf][~square["loss_mask"]].any()
    assert evaluate_loss("ppo", {}, given).gradients["predicted_values"].any()


def test_rewards_of_turns_count() -> None:
    given = packed() | {"turn_rewards": np.zeros(19)}
    before = evaluate_loss("reinforce", {}, given)
    given["turn_rewards"][2] = 0.5
    after = evaluate_loss("reinforce", {}, given)
    assert (before.advantages != after.advantages).any()


def test_a_teacher_in_the_batch_teaches_and_its_absence_is_named() -> None:
    given = packed()
    wanted = given["logprobs"] - 0.5
    found = evaluate_loss("opd", {"teacher": "engine"}, given | {"teacher_logprobs": wanted})
    np.testing.assert_allclose(found.advantages[given["loss_mask"]], -0.5, rtol=1e-5)
    assert found.metrics["reverse_kl"] == pytest.approx(0.5, rel=1e-5) and not found.needs
    with pytest.raises(UserError, match=r"reads log-probs of a teacher, and batch .* has none"):
        evaluate_loss("opd", {"teacher": "engine"}, given)


def test_named_rewards_are_those_of_trl_where_so_configured() -> None:
    """The keys that the docstring of `gdpo` names for TRL; every row trains a token."""
    public = SimpleNamespace(**runpy.run_path(str(HERE / "public_signals.py")))
    group, rng = np.repeat([0, 1, 2], 4), np.random.default_rng(3)
    rewards = {"correct": rng.integers(0, 2, 12), "form": rng.random(12)}
    given = {
        "logprobs": np.full((12, 3), -1.0), "loss_mask": np.tile([False, True, True], (12, 1)),
        "rewards": np.zeros(12), "group": group, "named_rewards": rewards,
    }  # fmt: skip
    keys = {
        "rewards": {"correct": 1.0, "form": 0.3}, "std_eps": 1e-4, "whiten": "row",
        "whiten_eps": 1e-4, "whiten_eps_inside": False,
    }  # fmt: skip
    found = evaluate_loss("gdpo", keys, given).advantages[:, 1]
    wanted = public.trl_gdpo(list(rewards.values()), (1.0, 0.3), group)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match=r"'correct', 'form', and batch .* has none"):
        evaluate_loss("gdpo", keys, given | {"named_rewards": {}})
    for wrong in ({"correct": rng.random(3)}, {"correct": np.full(12, np.nan)}, [1.0]):
        with pytest.raises(UserError, match="named_rewards"):
            evaluate_loss("gdpo", keys, given | {"named_rewards": wrong})


def test_an_algorithm_of_someone_else_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "astraflow_plugin_leave_one_out-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: astraflow-plugin-leave-one-out\nVersion: 0.1.0\n")
    entry = "[astraflow]\nleave_one_out = astraflow_plugin_leave_one_out.manifest\n"
    (folder / "entry_points.txt").write_text(entry)
    source = ROOT / "examples" / "plugins" / "leave_one_out" / "src"
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(source), *sys.path])
    given = packed() | {"group": [0, 0, 1, 1, 2, 2]}
    found = evaluate_loss("leave_one_out", {}, given)
    ours = evaluate_loss("rloo", {"dual_clip": "none"}, given)
    np.testing.assert_allclose(found.advantages, ours.advantages, rtol=1e-5)


def test_the_example_of_the_documents_runs() -> None:
    text = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import numpy.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["found"].metrics["clip_fraction"] == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("name", "keys", "changed", "told"),
    [
        ("grop", {}, {}, "no algorithm 'grop' is installed"),
        ("grpo", {"clip": 0.1}, {}, "did you mean 'clip_low'"),
        ("grpo", {"kl_coef": 0.1}, {"reference": None}, "needs 'reference', log-probs of the"),
        ("ppo", {}, {"values": None}, "needs 'values'"),
        ("grpo", {}, {"logits": [1.0]}, "unknown 'logits'; known are logprobs"),
        ("grpo", {}, {"rewards": None}, "rewards missing"),
        ("grpo", {}, {"rewards": [[1.0]]}, "expected one number for each row"),
        ("grpo", {}, {"rewards": [1.0] * 5}, "expected (5,), as of rewards"),
        ("grpo", {}, {"rewards": ["good"] * 6}, "expected floating-point numbers"),
        ("grpo", {}, {"rewards": [np.inf] * 6}, "rewards has numbers that are not finite"),
        ("grpo", {}, {"loss_mask": np.ones(19)}, "has the dtype float64; expected booleans"),
        ("grpo", {}, {"group": np.zeros(6)}, "expected integers"),
        ("grpo", {}, {"lengths": None}, "expected [6, T], padded, or [N] with lengths"),
        ("grpo", {}, {"lengths": [3] * 6}, "add up to 19"),
        ("grpo", {}, {"logprobs": [[-1.0]]}, "expected [N], packed"),
        ("grpo", {}, {"current": [-1.0]}, "has the shape (1,); expected (19,), as of logprobs"),
        ("grpo", {}, {"current": np.full(19, np.nan)}, "current has numbers that are not finite"),
        ("grpo", {}, {"current": [[1.0], [1.0, 2.0]]}, "current is not an array"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, keys: dict[str, Any], changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError) as caught:
        evaluate_loss(name, keys, packed() | changed)
    assert told in str(caught.value)
