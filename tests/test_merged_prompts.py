"""Runs whose prompts come from two sources, mixed by weights."""

from __future__ import annotations

import json

import pytest

from astraflow_core.errors import ConfigError
from astraflow_runtime.config.loading import load_config
from astraflow_testing.conformance.subject import context
from astraflow_testing.runs import TABLE_RUN, User

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


RUN = """
[run]
steps = 1
max_staleness = 0
[prompts]
use = "merged"
DATA
[prompts.sources.math]
use = "jsonl"
path = "math.jsonl"
[prompts.sources.code]
use = "jsonl"
path = "code.jsonl"
KEY
[workflow]
use = "single_turn"
[policies.solver]
model = "m"
batch_sequences = 4
trainer = { use = "astraflow_testing.table:TableTrainer" }
algorithm = { use = "astraflow_testing.table:TableAlgorithm" }
engine = { use = "astraflow_testing.table:TableEngine" }
transport = { use = "http" }
"""


def written(tmp_path, data="", key=""):
    file = tmp_path / "run.toml"
    file.write_text(RUN.replace("DATA", data).replace("KEY", key))
    for name, count in (("math", 9), ("code", 3)):
        lines = [json.dumps({"prompt": f"{name} {n}", "answer": "1"}) for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return file


def test_sources_of_a_run_are_validated_with_their_own_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load_config(written(tmp_path))
    assert {"prompts", "prompts.sources.math", "prompts.sources.code"} <= loaded.components.keys()
    selected, config = loaded.components["prompts"]
    source = selected.build(config, context("dataflow", tmp_path))
    assert len(source) == 12
    assert source[9].data == {"prompt": "code 0", "answer": "1", "source": "code"}
    with pytest.raises(ConfigError, match=r"prompts\.sources\.code\.pth"):
        load_config(written(tmp_path, key="pth = 1"))
    with pytest.raises(ConfigError, match=r"prompts\.sources\.code\.limit"):
        load_config(written(tmp_path, key="limit = 0"))
    with pytest.raises(ConfigError, match="name a prompt source"):
        load_config(written(tmp_path, key="[prompts.sources.third]\npath = 'x'"))
    with pytest.raises(ConfigError, match=r"prompts\.sources\.third.*jsonl"):
        load_config(written(tmp_path, key="[prompts.sources.third]\nuse = 'jsonll'"))


def test_mixing_takes_the_shares_from_the_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = 'data = [{ use = "mixing", weights = { math = 1, code = 1 } }]'
    loaded = load_config(written(tmp_path, data))
    built = {
        place: selected.build(config, context("dataflow", tmp_path))
        for place, (selected, config) in loaded.components.items()
        if place in ("prompts", "prompts.data.0")
    }
    source, mixing = built["prompts"], built["prompts.data.0"]
    order = [(7 * n) % 12 for n in range(12)] * 40
    admitted = [p.data["source"] for p in (source[i] for i in order) if mixing.admit(p)]
    assert len(admitted) > 200
    assert abs(admitted.count("math") / len(admitted) - 0.5) < 0.03


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
    assert user.astraflow("trace", "prompt", prompt, "--run", ended.run_directory).exit_code == 0
