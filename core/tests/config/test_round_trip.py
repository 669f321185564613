"""What is dumped loads as the same run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraflow_core.config.load import read_config
from astraflow_runtime.config.saved import dump_toml

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
seconds = st.floats(1e-6, 1e6)
positive = st.integers(1, 2**40)

engine = st.fixed_dictionaries(
    {"use": st.just("toy_engine")},
    optional={"slots": st.integers(), "python": st.just("python3.12")},
)
trainer = st.fixed_dictionaries(
    {"use": st.just("toy_trainer")},
    optional={
        "lr": st.floats(1e-12, 1),
        "schedule": st.floats(-1, 1)
        | st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)).map(list), max_size=3),
    },
)
policies = st.fixed_dictionaries(
    {
        "model": text.map(lambda name: f"nowhere:{name}"),
        "trainer": trainer,
        "algorithm": st.fixed_dictionaries({"use": st.just("toy_loss")}),
        "engine": engine,
        "transport": st.just({"use": "toy_full"}),
        "batch_sequences": positive,
    },
    optional={
        "mini_batches": positive,
        "data": st.lists(
            st.fixed_dictionaries(
                {"use": st.just("toy_filter"), "name": st.sampled_from(["one", "two", "three"])},
                optional={
                    "ratio": st.floats(0, 1),
                    "by": st.sampled_from(["edf", "fifo"]),
                    "shadow": st.booleans(),
                },
            ),
            max_size=3,
            unique_by=lambda table: table["name"],
        ),
    },
)
source = st.fixed_dictionaries(
    {"use": st.just("toy_file"), "path": st.just("/data/x.jsonl")}, optional={"title": text}
)
runs = st.fixed_dictionaries(
    {
        "run": st.fixed_dictionaries(
            {"steps": positive, "max_staleness": st.integers(0, 99)},
            optional={"seed": st.integers(0, 2**62), "lease_s": seconds, "directory": text},
        ),
        "prompts": source,
        "workflow": st.just({"use": "toy/toy_turn"}),
        "policies": st.dictionaries(names, policies, min_size=1, max_size=2),
    },
    optional={
        "reward": st.just({"use": "toy_match"}),
        "sampling": st.fixed_dictionaries({}, optional={"stop": st.lists(text), "top_k": positive}),
        "eval": st.fixed_dictionaries({"sets": st.dictionaries(names, source, max_size=2)}),
        "checkpoint": st.just({"every": 5}),
    },
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs)
def test_dumped_runs_load_equal(run_file: Path, site: Any, run: dict[str, Any]) -> None:
    catalog = site.catalog()
    config = read_config(run, (), catalog).config
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(dump_toml(config), encoding="utf-8")
        again = read_config(file, (), catalog)
    assert again.config == config
    assert dump_toml(again.config) == dump_toml(config)
