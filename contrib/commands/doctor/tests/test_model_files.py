"""What the doctor says of the models of a run, from their files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_doctor import diagnosis, preflight
from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.models import PolicyTable
from astraflow_runtime.config.loading import load_config
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_tiny_model.vision import write_tiny_vision_model

QUICKSTART = Path(__file__).resolve().parents[4] / "examples" / "quickstart.toml"
EXACT = tuple(f"policies.solver.{side}.batch_invariant=true" for side in ("engine", "trainer"))


def with_policy(loaded: LoadedConfig, policy: PolicyTable) -> LoadedConfig:
    changed = loaded.config.model_copy(update={"policies": {"solver": policy}})
    return replace(loaded, config=changed)


def test_images_need_a_model_that_reads_them(sound: str) -> None:
    policy = load_config(sound, []).config.policies["solver"]
    reading = policy.model_copy(update={"images": True})
    loaded = with_policy(load_config(sound, []), reading)

    def found() -> tuple[str, str]:
        (one,) = (
            f for f in diagnosis.of_run(loaded, sound) if f.subject == "policies.solver.images"
        )
        return one.level, one.text

    level, text = found()
    assert (
        level == "problem" and "is of type 'qwen3', which reads no images here; images need" in text
    )
    folder = write_tiny_vision_model(Path(reading.model), hidden=8, layers=1, heads=2, kv_heads=1)
    assert found() == ("ok", "an image becomes 4 tokens")
    (folder / "preprocessor_config.json").unlink()
    assert "is a model without a processor" in found()[1]


CACHED = """
@hookimpl
def astraflow_resolve_model(reference, seed, cache, fetch):
    assert not fetch
    folder = cache / reference.partition(":")[2]
    return folder if folder.is_dir() else None
"""
FETCHING = """
@hookimpl
def astraflow_resolve_model(reference, seed, cache):
    raise AssertionError("this would fetch it")
"""


def test_references_are_looked_at_if_nothing_has_to_be_fetched(
    site: Any, sound: str, manifest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path))
    site.add("cached", manifest + CACHED)
    site.add("fetching", manifest + FETCHING)
    policy = load_config(sound, []).config.policies["solver"]
    reading = policy.model_copy(update={"images": True, "model": "cached:seeing"})
    loaded = with_policy(load_config(sound, []), reading)

    def found() -> list[tuple[str, str]]:
        subjects = ("policies.solver.model", "policies.solver.images")
        return [(f.level, f.text) for f in diagnosis.of_run(loaded, sound) if f.subject in subjects]

    (_, later), (level, text) = found()
    assert "is resolved when the run starts" in later
    assert level == "ok" and "is checked when it is fetched: not by --static" in text
    folder = write_tiny_vision_model(tmp_path / "seeing", hidden=8, layers=1, heads=2, kv_heads=1)
    assert found() == [
        ("ok", f"{folder} is a model folder: what 'cached:seeing' means"),
        ("ok", "an image becomes 4 tokens"),
    ]
    (folder / "preprocessor_config.json").unlink()
    level, text = found()[1]
    assert level == "problem" and "model cached:seeing is a model without a processor" in text


def test_router_replay_needs_a_model_with_experts(
    sound: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_config(sound, []).config.policies["solver"]
    replayed = policy.model_copy(update={"router_replay": True})
    loaded = with_policy(load_config(sound, []), replayed)
    found = {f.subject: f for f in diagnosis.of_run(loaded, sound)}
    problem = found["policies.solver.router_replay"]
    assert (problem.level, problem.fix) == ("problem", "leave the key out")
    assert "of type 'qwen3', which has no experts" in problem.text
    write_tiny_model(
        Path(replayed.model), hidden=8, layers=1, heads=2, kv_heads=1, experts=4, top_k=2
    )
    (found_now,) = (f for f in diagnosis.of_run(loaded, sound) if f.subject == problem.subject)
    assert (found_now.level, found_now.text) == (
        "ok",
        "layers with experts: 1, and 2 of 4 experts for a token",
    )
    unresolved = with_policy(loaded, replayed.model_copy(update={"model": "elsewhere:experts"}))
    (later,) = (f for f in diagnosis.of_run(unresolved, sound) if f.subject == problem.subject)
    assert later.level == "ok" and "when it is fetched" in later.text
    resolved = with_policy(unresolved, replayed).config
    assert [f.level for f in preflight._of_experts(unresolved, resolved)] == ["ok"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), "measured: a gap is expected, about 1e-6 nats in float32"),
        (("policies.solver.engine.dtype=bfloat16",), "measured: a gap is expected, about 1e-3"),
        (EXACT, "exact: batch_invariant on both sides, a gap of 0; no probe checks it"),
        ((*EXACT, "run.probe_every=5"), "each probe (every 5 updates) that finds another ends"),
    ],
)
def test_which_agreement_of_engine_and_trainer_is_in_force(
    overrides: tuple[str, ...], expected: str
) -> None:
    loaded = load_config(QUICKSTART, overrides)
    (finding,) = diagnosis._of_agreement(loaded)
    assert finding.level == "ok" and finding.subject == "policies.solver mismatch"
    assert expected in finding.text


def test_batch_invariant_needs_a_model_of_a_known_kind(sound: str) -> None:
    loaded = load_config(sound, [])
    policy = loaded.config.policies["solver"]
    sides = {
        kind: type(table).model_validate({**table.model_dump(), "batch_invariant": True})
        for kind, table in (("engine", policy.engine), ("trainer", policy.trainer))
    }
    loaded = with_policy(loaded, policy.model_copy(update=sides))

    def found() -> tuple[str, str]:
        subject = "policies.solver.engine.batch_invariant"
        (one,) = (f for f in diagnosis.of_run(loaded, sound) if f.subject == subject)
        return one.level, one.text

    assert found() == ("ok", "the model is of a kind that it is made for")
    file = Path(policy.model) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "gelu"}))
    level, text = found()
    assert level == "problem" and text.endswith("has the activation 'gelu', not 'silu'")
