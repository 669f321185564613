"""The studies' loop is the same for the same seed, keeps to the staleness bound, and its reports are right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from workspace import ROOT

pytestmark = pytest.mark.timeout(240)

SMALL = (
    "run.steps=4",
    "run.group_size=4",
    "prompts.size=12",
    "policies.solver.model=tiny:qwen3?hidden=16&layers=1&heads=1&kv_heads=1&head_dim=16&ffn=16&context=32",
    "policies.solver.batch_sequences=16",
    "policies.solver.mini_batches=2",
    "policies.solver.trainer.schedule='constant'",
    'policies.solver.algorithm={ use = "grpo" }',
)


@pytest.fixture(autouse=True)
def _bench_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(ROOT)
    yield


def made(*overrides: str, delays: tuple[int, int] = (0, 0), under_way: int = 16) -> dict[str, Any]:
    from bench.studies.loop import Setting, train

    setting = Setting((*SMALL, *overrides), delays, under_way, eval_every=2, held_out=4)
    run = asyncio.run(train(setting))
    del run["cpu_s"]
    return json.loads(json.dumps(run))  # type: ignore[no-any-return]


ORDERED = 'policies.solver.data=[{ use = "ordering", by = "edf" }]'


def test_without_delay_all_rows_are_fresh_and_none_is_wasted() -> None:
    run = made("run.max_staleness=0", "policies.solver.data=[]")
    assert run["staleness"] == {"0": 64}
    assert [point["update"] for point in run["points"]] == [0, 2, 4]
    assert [point["rollouts"] for point in run["points"]] == [0, 32, 64]


@cache
def delayed(*overrides: str) -> dict[str, Any]:
    """A run with stale rows, made once."""
    return made("run.max_staleness=3", ORDERED, *overrides, delays=(1, 3), under_way=48)


def test_delays_make_rows_stale_within_the_bound_and_the_same_each_time() -> None:
    run = delayed()
    ages = {int(age): count for age, count in run["staleness"].items()}
    assert sum(ages.values()) == 64
    assert max(ages) <= 3 and sum(age * count for age, count in ages.items()) > 0
    assert delayed.__wrapped__() == run


def test_another_seed_is_another_run() -> None:
    first, other = delayed(), delayed("run.seed=2")
    assert first["points"][-1]["metrics"] != other["points"][-1]["metrics"]


def test_replayed_rows_save_rollouts_and_filters_cost_some() -> None:
    replay = 'policies.solver.data=[{ use = "replay", ratio = 0.5 }]'
    run = made("run.max_staleness=3", replay, under_way=8)
    # The first batch has nothing to replay; the others half.
    assert run["rows"]["replayed"] == 3 * 8
    assert run["points"][-1]["rollouts"] == 16 + 3 * 8
    filtered = made("run.max_staleness=3", 'policies.solver.data=[{ use = "dynamic_sampling" }]')
    refused = sum(filtered["refused"].values()) * 4
    left = filtered["points"][-1]["rollouts"] - refused - 64
    # Less than a batch was there when the last rows were begun, eight groups at once.
    assert refused > 0 and 0 <= left < 16 + 8 * 4


def test_a_run_whose_policies_keep_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.studies import loop

    monkeypatch.setattr(loop, "MOST_ROLLOUTS", 200)
    nothing = 'policies.solver.data=[{ use = "reward_filter", low = 2.0 }]'
    run = made("run.max_staleness=0", nothing)
    assert [point["update"] for point in run["points"]] == [0, 0]
    assert 200 <= run["points"][-1]["rollouts"] < 200 + 16 + loop.CHUNK * 4


def test_prompts_are_asked_of_the_policies_before_rollout() -> None:
    run = made(
        "run.max_staleness=0",
        "policies.solver.data=[]",
        'prompts.data=[{ use = "greso", floor_hard = 0.0, p_hard = 0.01 }]',
    )
    # Twelve prompts: from the second time on those without variance are passed over.
    assert run["refused"]["greso"] > 0


def point(update: int, greedy: float) -> dict[str, Any]:
    return {
        "update": update,
        "rollouts": 10 * update,
        "greedy": greedy,
        "sampled": greedy / 2,
        "reward": 0.0,
        "staleness": 3.0,
        "metrics": {"clip_fraction": 0.25} if update else {},
    }


def runs(name: str, *curves: list[float]) -> list[dict[str, Any]]:
    return [
        {"name": name, "seed": seed, "points": [point(10 * n, y) for n, y in enumerate(curve)]}
        for seed, curve in enumerate(curves)
    ]


def test_a_table_has_means_and_the_first_time_at_the_goal() -> None:
    from bench.studies import tables

    given = runs("grpo@4", [0.0, 0.9, 1.0], [0.0, 0.5, 0.8])
    line = tables.staleness(given, (0, 4)).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["`grpo`", "4", "2", "3.0"]
    assert cells[5] == "0.90 (0.80–1.00)"
    assert cells[8] == "10, –"
    assert cells[9] == "0.25"


def test_rollouts_are_compared_with_vanilla() -> None:
    from bench.studies import tables

    given = runs("vanilla", [0.0, 1.0]) + runs("ds", [0.0, 0.5, 0.95])
    lines = tables.data_policies(given, ["vanilla", "ds"]).splitlines()
    cells = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    assert cells[0] == "`ds`" and "2.00" in cells and cells[-2:] == ["200", "20"]


def test_a_picture_has_a_line_for_each_setting() -> None:
    from bench.studies import pictures

    given = runs("a@0", [0.0, 0.5, 1.0], [0.0, 0.7, 1.0]) + runs("b@0", [0.0, 0.1, 0.2])
    wanted = {"left": {"a": "a@0", "b": "b@0"}, "right": {"a": "a@0", "none": "c@0"}}
    root = ElementTree.fromstring(pictures.panels(given, wanted, "update", "updates"))
    lines = root.findall(".//{*}polyline")
    assert len(lines) == 3
    x, y = lines[0].attrib["points"].split()[1].split(",")
    assert float(x) == pytest.approx(pictures.LEFT + pictures.WIDTH / 2, abs=0.1)
    assert float(y) == pytest.approx(pictures.TOP + 0.4 * pictures.HEIGHT, abs=0.1)


def test_a_line_goes_as_far_as_every_seed() -> None:
    from bench.studies import pictures

    points = pictures.line(runs("a@0", [0.0, 0.5, 1.0], [0.0, 0.7]), "update")
    assert [greedy for _, greedy, *_ in points] == pytest.approx([0.0, 0.6])
    assert pictures.line([], "update") == []


def test_a_run_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    from bench.studies import records, staleness

    settings = staleness.quick(0)

    done = [
        {"name": name, "seed": 0, "setting": json.loads(json.dumps(asdict(setting))), "points": []}
        for name, setting in settings.items()
    ]
    records.write(tmp_path, done)
    assert list(records.make(settings, 0, records.read(tmp_path))) == []


@pytest.mark.slow
def test_whole_runs_of_router_replay_are_those_of_the_study(tmp_path: Path) -> None:
    from types import SimpleNamespace

    import numpy as np
    from bench.studies import replay, replay_runs
    from safetensors.numpy import load_file

    from astraflow_runtime.config.loading import load_config
    from astraflow_tiny_model.folder import ALPHABET

    setting = replay.SETTINGS["row_ratio"]
    replay_runs.written(tmp_path, replace(setting, common=0.0), 1)
    plain = load_file(tmp_path / "model" / "model.safetensors")
    replay_runs.written(tmp_path, setting, 1)
    changed = load_file(tmp_path / "model" / "model.safetensors")
    routers = [name for name in plain if not np.array_equal(plain[name], changed[name])]
    assert len(routers) == setting.layers
    for name in routers:
        apart = (plain[name] - plain[name][0], changed[name] - changed[name][0])
        np.testing.assert_allclose(*apart, atol=1e-4)
        assert np.abs(changed[name]).mean() > 10 * np.abs(plain[name]).mean()
    config = load_config(tmp_path / "run.toml", ["policies.solver.router_replay=true"]).config
    assert config.policies["solver"].algorithm.use == setting.algorithm

    names: dict[str, Any] = {}
    exec((tmp_path / "counting.py").read_text(encoding="utf-8"), names)
    for prompt, text in (("34", "5678901234567890"), ("09", "0123333377890123"), ("12", "3")):
        found = names["counted"](SimpleNamespace(data={"prompt": prompt}, text=text))
        asked, said = (np.array([*map(ALPHABET.index, each)], np.int32) for each in (prompt, text))
        expected = replay.counted(asked, said, setting.words) * len(text) / setting.tokens
        assert found == pytest.approx(expected)
