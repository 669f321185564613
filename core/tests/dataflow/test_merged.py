"""Prompt sources that are merged into one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow_core.config.load import load_config
from astraflow_core.dataflow.merged import Merged
from astraflow_core.dataflow.merged_config import MergedConfig
from astraflow_core.errors import ConfigError, PromptError
from astraflow_core.testing.conformance.subject import context
from astraflow_core.types import Prompt


class Few:
    def __init__(self, config, context):
        pass

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return Prompt(f"few{index}", {"prompt": str(index), "source": "what it said itself"})


class Many(Few):
    def __len__(self):
        return 3


class Nothing(Few):
    def __len__(self):
        return 0


def merged(**sources):
    tables = {name: {"use": f"{__name__}:{use.__name__}"} for name, use in sources.items()}
    return Merged(MergedConfig.model_validate({"sources": tables}), context("dataflow", Path(".")))


def test_all_prompts_are_there_with_the_name_of_their_source():
    source = merged(a=Few, b=Many)
    assert [source[i].id for i in range(len(source))] == [
        "a/few0", "a/few1", "b/few0", "b/few1", "b/few2",
    ]  # fmt: skip
    assert [source[i].data["source"] for i in range(5)] == ["a", "a", "b", "b", "b"]
    assert source[3].data["prompt"] == "1"


def test_a_source_without_prompts_is_named():
    with pytest.raises(PromptError, match="source 'b' has no prompts"):
        merged(a=Few, b=Nothing)


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
trainer = { use = "astraflow_core.testing.table:TableTrainer" }
algorithm = { use = "astraflow_core.testing.table:TableAlgorithm" }
engine = { use = "astraflow_core.testing.table:TableEngine" }
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
