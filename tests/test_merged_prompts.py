"""A run whose prompts come from two sources, mixed by weights."""

from __future__ import annotations

import json

import pytest

from astraflow_core.testing.runs import TABLE_RUN, User

CONFIG = TABLE_RUN.replace(
    'use = "digits"\ndigits = 2\n',
    """use = "merged"
data = [{ use = "mixing", weights = { copied = 1, reversed = 3 } }]

[prompts.sources.copied]
use = "digits"
digits = 2
operation = "copy"

[prompts.sources.reversed]
use = "digits"
digits = 2
operation = "reverse"
""",
)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_of_two_sources(user: User) -> None:
    ended = user.run_table("run.steps=12", config=CONFIG)
    assert ended.exit_code == 0, ended.text
    status = json.loads((ended.run_directory / "status.json").read_text())
    figures = status["admission_metrics"]
    admitted = {name: figures[f"mixing/admitted_{name}"] for name in ("copied", "reversed")}
    assert sum(admitted.values()) == status["tasks"]["admitted"] >= 48
    assert admitted["reversed"] / sum(admitted.values()) == pytest.approx(0.75, abs=0.05)
    refused = status["decisions"]["prompts"]["mixing"]["admit"]["its source has its share"]
    assert refused == sum(status["refused_prompts"].values()) > 0
    prompt = status["samples"][-1]["prompt_id"]
    assert prompt.split("/")[0] in admitted
    assert user.astraflow("explain", "prompt", prompt, ended.run_directory).exit_code == 0
