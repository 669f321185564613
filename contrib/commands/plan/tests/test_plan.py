"""The command: what it lists, what it refuses, and what it proposes instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from published_models import LLAMA_8B, QWEN_06B

from astraflow_runtime.cli import main

Folder = Callable[[dict[str, Any]], Path]
CONFIG = """
[run]
steps = 1000
max_staleness = 1
[prompts]
use = "digits"
[workflow]
use = "single_turn"
[reward]
use = "exact"
[sampling]
max_tokens = 4096
[policies.solver]
model = {model!r}
batch_sequences = 64
engine = {{ use = "{engine}" }}
algorithm = {{ use = "grpo" }}
transport = {{ use = "http" }}
[policies.solver.trainer]
use = "{trainer}"
ranks = {ranks}
[raas]
replicas = {replicas}
"""
Plan = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def plan(tmp_path: Path, folder: Folder, capsys: pytest.CaptureFixture[str]) -> Plan:
    """``astraflow plan --json`` of a config: exit code and what it prints."""

    def planned(
        model: dict[str, Any], *words: str, engine: str = "vllm", trainer: str = "fsdp", ranks: int = 1,
        replicas: int = 1,
    ) -> tuple[int, dict[str, Any]]:  # fmt: skip
        file = tmp_path / "run.toml"
        file.write_text(
            CONFIG.format(
                model=str(folder(model)),
                engine=engine,
                trainer=trainer,
                ranks=ranks,
                replicas=replicas,
            )
        )
        code = main(["plan", str(file), "--json", *words])
        said = capsys.readouterr()
        assert said.out, said.err
        return code, json.loads(said.out)

    return planned


def process(told: dict[str, Any], role: str) -> dict[str, Any]:
    return next(each for each in told["processes"] if each["role"] == role)


def test_a_small_model_fits_and_is_listed(plan: Plan) -> None:
    code, told = plan(QWEN_06B, "--gpus", "2", "--gpu-memory-gb", "80")
    assert code == 0 and told["fits"] and told["nearest"] is None
    names = [each["name"] for each in told["processes"]]
    assert names == ["dataflow", "trainer-solver", "raas-0", "raas-0/solver #0"]
    trainer, engine = process(told, "trainer"), process(told, "engine")
    assert (trainer["devices"], engine["devices"]) == ([0], [1])
    states = sum(trainer["bytes"][part] for part in ("weights", "gradients", "optimizer"))
    assert states == 16 * 596_049_920
    assert engine["bytes"]["weights"] == 2 * 596_049_920
    assert told["devices"]["1"] == pytest.approx(0.9 * 80e9, rel=0.02)


def test_what_cannot_fit_is_refused_with_a_plan_that_does(plan: Plan) -> None:
    code, told = plan(LLAMA_8B, "--gpus", "8", "--gpu-memory-gb", "80")
    assert code == 2 and not told["fits"]
    assert any(
        "are activations" in problem and "74.5 GiB" in problem for problem in told["problems"]
    )
    changes = told["nearest"]["set"]
    assert any("ranks" in change for change in changes), changes
    again = [word for change in changes for word in ("--set", change)]
    code, told = plan(LLAMA_8B, "--gpus", "8", "--gpu-memory-gb", "80", *again)
    assert code == 0, told["problems"]
    assert max(told["devices"].values()) <= 80e9


def test_the_trainer_torch_is_sharded_by_fsdp(plan: Plan) -> None:
    code, told = plan(LLAMA_8B, "--gpus", "8", "--gpu-memory-gb", "80", trainer="torch")
    changes = " ".join(told["nearest"]["set"])
    assert code == 2
    assert 'trainer.use="fsdp"' in changes or "lora_rank" in changes


def test_too_few_gpus_for_all_processes(plan: Plan) -> None:
    code, told = plan(QWEN_06B, "--gpus", "3", "--gpu-memory-gb", "80", replicas=4)
    assert code == 2 and "5 GPUs are needed, and there are 3" in told["problems"][0]
    assert "1 for trainers, 4 for engines" in told["problems"][0]
    assert told["nearest"]["set"] == ["raas.replicas=2"]


def test_what_nothing_can_fit(plan: Plan) -> None:
    code, told = plan(LLAMA_8B, "--gpus", "1", "--gpu-memory-gb", "2")
    assert code == 2 and told["nearest"] is None


def test_hours_and_cost_by_throughput(plan: Plan) -> None:
    words = ("--gpu-memory-gb", "80", "--tokens-per-s", "65536", "--gpu-cost-per-hour", "3.5")
    code, told = plan(QWEN_06B, *words)
    assert code == 0
    assert told["time"]["step_s"] == 64 * 4096 / 65536
    assert told["time"]["hours"] == pytest.approx(4 * 1000 / 3600)
    assert told["time"]["cost"] == pytest.approx(4 * 1000 / 3600 * 2 * 3.5)
    assert "--tokens-per-s" in told["time"]["origin"]


def test_on_a_host_without_gpus_all_share_its_memory(plan: Plan) -> None:
    code, told = plan(QWEN_06B, "--host-memory-gb", "64", engine="torch", trainer="torch")
    assert process(told, "engine")["bytes"]["weights"] == 4 * 596_049_920
    assert "CUDA" not in process(told, "trainer")["bytes"]
    total = sum(sum(each["bytes"].values()) for each in told["processes"])
    assert told["devices"]["host"] == pytest.approx(total) and code == 0


def test_an_unknown_trainer_is_reported_as_unknown(plan: Plan) -> None:
    table = "astraflow_testing.table:Table"
    _, told = plan(QWEN_06B, "--set", f'policies.solver.trainer.use="{table}Trainer"')
    assert "Trainer" in process(told, "trainer")["unknown"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpus", "8"], "--gpus needs --gpu-memory-gb"),
        (["--gpu-memory-gb", "-1"], "expected a number above 0"),
        (["--gpu-memory-gb", "nan"], "expected a number above 0"),
        (["--from", "nowhere"], "no run 'nowhere'"),
        (["--set", "policies.solver.model='hf:nobody/nothing'"], "plan fetches nothing"),
    ],
)
def test_wrong_words_end_with_2(
    words: list[str], says: str, tmp_path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    file = tmp_path / "run.toml"
    text = CONFIG.format(
        model=str(folder(QWEN_06B)), engine="vllm", trainer="fsdp", ranks=1, replicas=1
    )
    file.write_text(text)
    assert main(["plan", str(file), *words]) == 2
    assert says in capsys.readouterr().err


def test_devices_that_the_plan_assumes_are_reported(plan: Plan) -> None:
    words = ("--gpus", "2", "--gpu-memory-gb", "80")
    _, told = plan(QWEN_06B, *words)
    assert told["assumed"] == ['policies.solver.engine.devices=["1"]']
    _, told = plan(QWEN_06B, *words, "--set", told["assumed"][0])
    assert told["assumed"] == [] and process(told, "engine")["devices"] == [1]
    _, told = plan(QWEN_06B, "--gpus", "3", "--gpu-memory-gb", "80", replicas=2)
    assert not told["assumed"] and "every engine is on the first GPU" in told["warning"]


def test_devices_are_proposed_where_an_engine_can_share_a_gpu(plan: Plan) -> None:
    words = ("--gpus", "1", "--gpu-memory-gb", "180")
    code, told = plan(QWEN_06B, *words, engine="torch", trainer="torch")
    assert code == 2
    assert told["nearest"]["set"] == ['policies.solver.engine.devices=["0"]']


def test_devices_that_are_not_there_are_named(plan: Plan) -> None:
    wrong = ("--set", 'policies.solver.engine.devices=["9"]')
    code, told = plan(QWEN_06B, "--gpus", "2", "--gpu-memory-gb", "80", *wrong)
    assert code == 2
    (problem,) = told["problems"]
    assert "devices names GPU 9; there are 0 and 1" in problem


@pytest.mark.slow
def test_a_model_that_an_engine_cannot_split(plan: Plan) -> None:
    _, told = plan(LLAMA_8B, "--gpus", "8", "--gpu-memory-gb", "12", engine="torch")
    assert any("cannot split a model" in problem for problem in told["problems"])


def test_a_cost_without_a_time_is_reported_as_unused(
    tmp_path: Path, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    model = str(folder(QWEN_06B))
    file.write_text(CONFIG.format(model=model, engine="vllm", trainer="fsdp", ranks=1, replicas=1))
    main(["plan", str(file), "--gpu-cost-per-hour", "3"])
    said = "--gpu-cost-per-hour is not used without --from or --tokens-per-s and --gpu-memory-gb"
    assert said in capsys.readouterr().err
