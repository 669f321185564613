"""The benchmarks of losses and data policies cover all of them and count right. Times are never asserted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_sources import of
from workspace import ROOT

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.types import Prompt
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.model_files.tensor_file import mapped, read_specs

Quick = Callable[[str], dict[str, Any]]


@pytest.fixture(autouse=True)
def _bench_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(ROOT)
    yield


def test_no_data_policy_that_keeps_state_is_left_out() -> None:
    from bench.data_policies import POLICIES

    catalog = Catalog.discover()
    stateful = {
        entry.component.name
        for entry in catalog.components(Kind.DATA_POLICY)
        if "-plugin-" in entry.distribution and "stateful" in entry.component.capabilities
    }
    assert stateful and stateful <= {use for use, _ in POLICIES.values()}


def test_a_mistyped_benchmark_is_answered_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.__main__ import main

    monkeypatch.setattr("sys.argv", ["bench", "flowscale", "--quick"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "no benchmark 'flowscale'; did you mean 'flow_scale'?" in capsys.readouterr().err


def test_a_shallow_model_has_the_first_layers_of_the_whole(tmp_path: Path) -> None:
    from bench.support.shallow import shallow

    whole = write_tiny_model(tmp_path / "whole", layers=3, dtype="BF16")
    folder = shallow(whole, tmp_path / "shallow", 1)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 1
    assert (folder / "tokenizer.json").read_bytes() == (whole / "tokenizer.json").read_bytes()
    kept, every = tensors(folder), tensors(whole)
    assert kept.keys() == {
        name for name in every if not name.startswith(("model.layers.1.", "model.layers.2."))
    }
    assert all(kept[name] == every[name] for name in kept)


def tensors(folder: Path) -> dict[str, bytes]:
    """The bytes of each tensor of a model."""
    with mapped(folder / "model.safetensors") as file:
        return {spec.name: bytes(file[spec.start : spec.end]) for spec in read_specs(file)}


def test_eight_clients_of_tinker_are_compared_with_one() -> None:
    from bench.tinker import MODELS, Sides, compared

    sides = Sides(native=[(2.0, 1.0)], one=[(3.0, 0.9)], many=[(2.5, 1.0)])
    found = compared(sides)
    assert (found["step_over_native"], found["step_cpu_over_native"]) == (1.5, 0.9)
    assert (found["throughput_at_8"], found["cpu_throughput_at_8"]) == (1.2, 0.9)
    assert (found["one_s"], found["many_s"], found["many_cpu_s"]) == (3.0, 2.5, 1.0)
    assert MODELS >= 9  # those of the script before are not gone yet


@of("algorithms")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_loss_has_its_share_of_a_pass(quick: Quick) -> None:
    fields = quick("algorithms")
    from bench.algorithms import losses

    names = losses(Catalog.discover())
    assert {"grpo", "ppo", "m2po", "sft", "grpo_tis"} <= names.keys()
    assert all(fields[name] > 0 for name in names)
    assert fields["worst_fraction"] == max(fields[name] for name in names)
    assert fields["pass_ms"] > 0


@of("trainers")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trainer_makes_the_gradient_of_the_loop_that_it_is_measured_by(quick: Quick) -> None:
    fields = quick("trainers")  # which fails if the gradients differ
    from bench.trainers import BESIDE, can_run

    for name in ("", *(f"{use}_" for use in BESIDE if can_run(use))):
        assert fields[f"{name}over_minimal"] > 0 and fields[f"{name}tokens_per_s"] > 0
    assert 0 < fields["padding_waste"] < 0.12
    assert fields["export_over_memcpy"] > 0 and fields["export_cast_over_memcpy"] > 0
    assert 0 < fields["checkpoint_stall"] < 1


@of("data_policies")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_data_policy_is_measured(quick: Quick) -> None:
    fields = quick("data_policies")
    from bench.data_policies import POLICIES

    assert all(fields[f"us_{name}"] > 0 for name in POLICIES)
    assert fields["decision_us"] == max(fields[f"us_{name}"] for name in POLICIES)
    # A float64, and the spare room of an array that grows.
    assert 8 <= fields["bytes_solved_filter"] < 11
    assert fields["bytes_per_prompt"] == max(fields[f"bytes_{name}"] for name in POLICIES)


@pytest.mark.parametrize("name", ["greso", "solved_filter", "quarantine", "curriculum"])
def test_a_checkpoint_is_the_state_of_all_prompts(name: str) -> None:
    from bench.data_policies import Case

    known = [Prompt(f"prompt:{n:08}") for n in range(50)]
    case = Case(name, known)
    case.meet()
    state = json.loads(json.dumps(case.policy.state_dict()))
    case.checkpoint_s()
    assert case.restored() == state
    others = Case(name, known[:1]).policy
    assert others.state_dict() != case.policy.state_dict()


def test_memory_that_grows_with_prompts_is_found_wherever_it_is() -> None:
    from bench.data_policies import Case

    known = [Prompt(f"prompt:{n:08}") for n in range(2000)]
    lean, fat = Case("greso", known), Case("greso", known)
    lean.meet()
    fat.meet()
    fat.policy.hoard = [[float(n)] for n in range(2000)]
    assert fat.bytes_held() - lean.bytes_held() > 2000 * (8 + 24 + 64)
