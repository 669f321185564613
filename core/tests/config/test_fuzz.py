"""Whatever a file holds, the answer is a config or a list of problems, never another exception."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from astraflow_core.config.load import read_config
from astraflow_core.errors import ConfigError

VOCABULARY = """
run prompts workflow reward policies eval sets launcher plugins enable disable only data use steps
max_staleness solver trainer algorithm engine transport python ranks model path extra ratio by cache
toy_engine toy_trainer toy_loss toy_filter toy_full toy_file toy_turn toy/toy_loss auto local core
toy_parts:Part a:b :: / x:
"""
words = st.sampled_from(VOCABULARY.split())
scalars = words | st.integers(-3, 9) | st.floats() | st.booleans() | st.just("") | st.just("0")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(words, values, max_size=6)
paths = st.lists(words | st.sampled_from(["0", "1", ""]), min_size=1, max_size=4).map(".".join)
overrides = st.lists(
    st.tuples(paths, words | st.sampled_from(["3", "[1]", "{}"])).map("=".join), max_size=3
)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(patch=tables, section=words, inner=tables, sets=overrides)
@example(patch={"plugins": {"disable": 3, "only": [1]}}, section="run", inner={}, sets=[])
@example(
    patch={"policies": {"solver": []}}, section="eval", inner={"sets": 1}, sets=["policies.0=1"]
)
def test_arbitrary_tables(
    run_file: Any,
    site: Any,
    patch: dict[str, Any],
    section: str,
    inner: dict[str, Any],
    sets: list[str],
) -> None:
    import tomllib

    table = tomllib.loads(run_file.read_text()) | patch
    if isinstance(table.get(section), dict):
        table[section] |= inner
    with contextlib.suppress(ConfigError):
        read_config(table, sets, site.catalog())
    with contextlib.suppress(ConfigError):
        read_config(table, sets)
