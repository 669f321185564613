"""The example in which a policy sees pictures: it learns, and what cannot read them is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow_testing.runs import User

COLOURS = Path(__file__).parents[1] / "examples" / "colours.toml"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("heavy_imports")
def test_a_policy_learns_to_name_the_colour_of_a_picture(user: User) -> None:
    ended = user.astraflow(
        "run", COLOURS, "--set", "run.steps=24", "--set", "run.probe_every=1", deadline_s=280
    )
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 24 and ended.summary["failed"] == 0
    # Of seven characters one is right; in three runs the last steps had 0.6 and more, and the held-out pictures 1.0.
    assert ended.summary["reward_first"] < 0.3 < 0.45 < ended.summary["reward_last"]
    assert ended.summary["eval_first"] < 0.5 < 0.9 < ended.summary["eval_last"]
    lines = map(json.loads, (ended.run_directory / "metrics.jsonl").read_text().splitlines())
    metrics = [line["metrics"] for line in lines if "metrics" in line]
    gaps = [each["probe_largest"] for each in metrics if "probe_largest" in each]
    assert gaps and max(gaps) < 1e-4, gaps
    again = user.astraflow("eval", ended.run_directory, "--limit", "6", deadline_s=60)
    assert again.exit_code == 0 and "0 of 6" in again.text, again.text


@pytest.mark.slow
@pytest.mark.usefixtures("heavy_imports")
def test_a_model_without_images_is_refused_before_a_start(user: User) -> None:
    model = "policies.namer.model=tiny:qwen3?hidden=8&heads=2&alphabet=%20$rgb%3D"
    refused = user.astraflow("run", COLOURS, "--set", model, deadline_s=60)
    assert refused.exit_code == 2, refused.text
    text = " ".join(refused.text.split())
    assert "policies.namer.images: the model " in text and "is of type 'qwen3'" in text
    assert "reads no images here; images need a model of type 'llava'" in text
    unread = user.astraflow("run", COLOURS, "--set", "policies.namer.images=false", deadline_s=60)
    assert unread.exit_code == 2, unread.text
    assert "set images = true in [policies.namer]" in " ".join(unread.text.split())
