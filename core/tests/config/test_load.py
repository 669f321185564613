"""Loading a run: every problem at once, origins, paths."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.config.load import component_context, read_config
from astraflow_core.errors import ConfigError, PluginError
from astraflow_core.installed.discovery import DISABLE_VARIABLE
from astraflow_runtime.config.show import values


def problems(file: Path, site: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_config(file, overrides, site.catalog())
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_a_valid_run_loads(site: Any, run_file: Path) -> None:
    loaded = read_config(run_file, ["run.seed=7"], site.catalog())
    assert loaded.config.run.seed == 7
    assert loaded.components["policies.solver.engine"][0].qualified == "toy/toy_engine"
    assert loaded.components["launcher"][0].qualified == "runtime/local"
    assert loaded.origins["run.seed"] == "--set"
    assert loaded.origins["run.steps"] == str(run_file)
    assert "run.group_size" not in loaded.origins


def test_text_that_toml_reads_as_something_else_wants_quotes(site: Any, run_file: Path) -> None:
    (problem,) = problems(run_file, site, "run.name=nan")
    hint = """run.name="…\""""
    assert problem == f"run.name: must be a string in quotes (--set '{hint}'); received nan"
    quoted = hint.replace("…", "nan")
    assert read_config(run_file, [quoted], site.catalog()).config.run.name == "nan"


def test_keys_of_the_launcher_need_no_name(site: Any, run_file: Path) -> None:
    loaded = read_config(run_file, ["launcher.restarts=7"], site.catalog())
    assert loaded.config.launcher.use == "local"
    assert loaded.config.launcher.options == {"restarts": 7}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "run.steps=3",
            "balance.use: no data_policy 'three_zones' is installed; astraflow-plugin-three-zones provides it",
        ),
        (
            "prompts.use=merged",
            "prompts.use: no prompt_source 'merged' is installed; astraflow-contrib-merged provides it",
        ),
    ],
)
def test_a_default_that_is_not_installed_names_its_distribution(
    site: Any, run_file: Path, override: str, problem: str
) -> None:
    toys = Catalog([p for p in site.catalog().plugins if p.name in ("runtime", "toy")])
    with pytest.raises(ConfigError) as caught:
        read_config(run_file, [override], toys)
    assert any(found.startswith(problem) for found in caught.value.problems)


def test_every_problem_of_a_run_at_once(site: Any, run_file: Path) -> None:
    run_file.write_text(
        """
extra = 1
[run]
stepz = 3
steps = 0
max_staleness = -1
[prompts]
use = "toy_file"
pat = "x"
data = [{ use = "toy_filter", ratio = 2 }, { by = "edf" }]
[reward]
use = "toy_mtach"
[policies.solver]
batch_sequences = "many"
trainer = { use = "toy_trainer", ranks = 0, lr = -1 }
algorithm = { use = "toy_loss", cliplow = 0.1 }
engine = "toy_engine"
[policies.Bad]
[eval.sets.held_out]
use = "toy_file"
path = 3
[raas]
episodes = 4
"""
    )
    found = problems(run_file, site, "nonsense", "run.max_staleness.x=1")
    expected = [
        "extra: unknown key (received 1)",
        "--set 'nonsense': expected KEY=VALUE",
        "--set 'run.max_staleness.x=1': run.max_staleness is -1, not a table",
        "run.stepz: unknown key (received 3); did you mean 'steps'? allowed: ",
        "run.steps: must be greater than or equal to 1; received 0",
        "run.max_staleness: must be greater than or equal to 0; received -1",
        "raas.episodes: unknown key (received 4); did you mean 'max_concurrent_episodes'? allowed: ",
        "prompts.pat: unknown key (received 'x'); did you mean 'path'? allowed: extra, path, title",
        "prompts.path: this key is required",
        "prompts.data.0.ratio: must be less than or equal to 1; received 2",
        "prompts.data.1.use: this key is required",
        "workflow: this table is required: [workflow]",
        "reward.use: no reward 'toy_mtach' is installed; did you mean 'toy_match'?",
        "policies.solver.model: this key is required (Hugging Face folder",
        "policies.solver.batch_sequences: must be a valid integer",
        "policies.solver.trainer.ranks: must be greater than or equal to 1; received 0",
        "policies.solver.trainer.lr: must be greater than 0; received -1",
        "policies.solver.algorithm.cliplow: unknown key (received 0.1); did you mean 'clip_low'?",
        "policies.solver.engine: must be a table; received 'toy_engine'",
        "policies.solver.transport: this table is required",
        "policies.Bad: the name must match pattern",
        "eval.sets.held_out.path: ",
    ]
    assert [e for e in expected if not any(p.startswith(e) for p in found)] == []
    tables = [problem.split(":")[0].split(".")[0] for problem in found]
    order = [
        "extra",
        "--set 'nonsense'",
        "run",
        "prompts",
        "workflow",
        "reward",
        "policies",
        "eval",
    ]
    seen = list(dict.fromkeys(tables))
    assert [table for table in seen if table in order[2:]] == order[2:]


def test_a_policy_that_only_set_names_is_taken_for_a_mistyped_one(
    site: Any, run_file: Path
) -> None:
    assert problems(run_file, site, "policies.solverr.trainer.lr=1") == [
        "policies.solverr: it is set only by --set; did you mean 'solver'?"
    ]
    lacking = problems(run_file, site, "policies.xyzzy.batch_sequences=1")
    assert "policies.xyzzy.model: this key is required" in lacking[0]


def test_a_data_policy_may_be_used_twice_only_under_different_names(
    site: Any, run_file: Path
) -> None:
    text = run_file.read_text()
    twice = 'data = [{ use = "toy_filter", ratio = 0.1 }, { use = "toy_filter", NAMEratio = 0.9 }]'
    run_file.write_text(text.replace("[prompts]", f"[prompts]\n{twice}").replace("NAME", ""))
    (problem,) = problems(run_file, site)
    assert problem.startswith("prompts.data: toy_filter appears more than once")
    named = twice.replace("NAME", 'name = "second", ')
    run_file.write_text(text.replace("[prompts]", f"[prompts]\n{named}"))
    first, second = read_config(run_file, (), site.catalog()).config.prompts.data
    assert (first.label, second.label) == ("toy_filter", "second")
    assert second.options == {"ratio": 0.9}


def test_a_group_deadline_that_cannot_act_is_refused(site: Any, run_file: Path) -> None:
    (problem,) = problems(run_file, site, "run.refill_groups=true")
    assert problem.startswith("run: refill_groups has no effect without group_deadline_s")
    (problem,) = problems(run_file, site, "run.group_deadline_s=120")
    assert problem.startswith("run: group_deadline_s = 120 has no effect")
    assert problems(run_file, site, "run.group_deadline_s=0")
    run = read_config(run_file, ["run.group_deadline_s=9"], site.catalog()).config.run
    assert (run.group_deadline_s, run.refill_groups) == (9, False)


def test_a_missing_workflow_may_come_as_an_object(site: Any, run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace('[workflow]\nuse = "toy_turn"\n', ""))
    assert problems(run_file, site) == [
        "workflow: this table is required: [workflow] with use = a workflow (installed: toy/toy_turn)"
    ]
    loaded = read_config(run_file, (), site.catalog(), workflow_given=True)
    assert loaded.config.workflow is None


def test_a_mapping_is_a_run_too(site: Any, run_file: Path) -> None:
    table = tomllib.loads(run_file.read_text())
    table["prompts"]["path"] = Path("/data/a.jsonl")
    table["policies"]["solver"]["data"] = ({"use": "toy_filter", "ratio": 0.1},)
    before = copy.deepcopy(table)
    overrides = ["run.name=given", "policies.solver.data.0.ratio=0.2"]
    loaded = read_config(table, overrides, site.catalog())
    assert loaded.config.run.name == "given"
    assert loaded.config.policies["solver"].data[0].options == {"ratio": 0.2}
    assert loaded.config.prompts.options == {"path": "/data/a.jsonl"}
    assert table == before
    assert loaded.origins["run.steps"] == "the given table"


def test_paths_start_from_the_file_that_set_them(
    site: Any, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    (base / "model").mkdir(parents=True)
    run_file.rename(base / "run.toml")
    child = tmp_path / "child.toml"
    child.write_text(
        'extends = "base/run.toml"\n'
        "[prompts]\n"
        'extra = ["a.jsonl", "/abs.jsonl"]\n'
        'title = "not/a/path"\n'
        "[policies.solver]\n"
        'engine = { use = "toy_engine", cache = "~/c", python = "envs/bin/python" }\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", "/homes/me")
    loaded = read_config(child, ["eval.sets.e={use='toy_file', path='e.jsonl'}"], site.catalog())
    prompts, engine = loaded.config.prompts, loaded.config.policies["solver"].engine
    assert prompts.options == {
        "path": str(base / "train.jsonl"),
        "extra": [str(tmp_path / "a.jsonl"), "/abs.jsonl"],
        "title": "not/a/path",
    }
    assert engine.options == {"cache": "/homes/me/c"}
    assert engine.python == str(tmp_path / "envs/bin/python")
    assert loaded.config.eval.sets["e"].options == {"path": str(elsewhere / "e.jsonl")}
    assert loaded.config.policies["solver"].model == "nowhere:x"

    (base / "run.toml").write_text(
        (base / "run.toml").read_text().replace('"nowhere:x"', '"model"')
    )
    loaded = read_config(child, (), site.catalog())
    assert loaded.config.policies["solver"].model == str(base / "model")


def test_a_path_that_is_no_folder_is_named_as_missing_elsewhere(site: Any, run_file: Path) -> None:
    loaded = read_config(run_file, ["policies.solver.model=no/folder"], site.catalog())
    assert loaded.config.policies["solver"].model == "no/folder"


def test_plugins_of_the_run_are_barred_before_import(
    site: Any, run_file: Path, manifest: str
) -> None:
    site.add("loud", manifest + "raise AssertionError('imported')\n")
    table = '\n[plugins]\ndisable = ["loud"]\n'
    run_file.write_text(run_file.read_text() + table)
    loaded = read_config(run_file)
    assert loaded.catalog.plugin("loud").state == "disabled"
    run_file.write_text(
        run_file.read_text().replace('"loud"', '"luod", "never_heard_of", "runtime"')
    )
    found = problems(run_file, site)
    assert len(found) == 2
    assert "did you mean 'loud'?" in found[0]
    assert "cannot be disabled" in found[1]


def test_a_misspelt_name_in_the_environment_is_reported(
    site: Any, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DISABLE_VARIABLE, " tyo, never_heard_of,")
    (found,) = problems(run_file, site)
    assert found == f"{DISABLE_VARIABLE}: no plugin 'tyo' is installed; did you mean 'toy'?"


def test_enabled_plugins_must_be_usable(site: Any, run_file: Path) -> None:
    site.add("bad", "import nothing_of_this_name")
    found = problems(run_file, site, 'plugins.enable=["bad", "toyy"]')
    assert "plugin 'bad' cannot be used" in found[0]
    assert "did you mean 'toy'?" in found[1]


def test_a_component_cannot_take_a_key_of_the_core(
    site: Any, run_file: Path, manifest: str
) -> None:
    site.add(
        "greedy",
        manifest + "@hookimpl\ndef astraflow_trainers():\n"
        "    return [Component('greedy', 'greedy_parts:T', 's', 'greedy_parts:C')]\n",
        modules={
            "greedy_parts": "from astraflow_core.config.models import ConfigModel\n"
            "class C(ConfigModel):\n    ranks: int = 1\n"
        },
    )
    (found,) = problems(run_file, site, "policies.solver.trainer.use=greedy")
    assert "cannot define keys named ranks" in found


def test_values_show_the_defaults_of_components(site: Any, run_file: Path) -> None:
    shown = {
        v.key: (v.value, v.origin)
        for v in values(read_config(run_file, ["policies.solver.trainer.lr=2e-3"], site.catalog()))
    }
    assert shown["policies.solver.trainer.lr"] == (0.002, "--set")
    assert shown["policies.solver.algorithm.clip_low"] == (
        0.2,
        "default of algorithm toy/toy_loss",
    )
    assert shown["run.group_size"] == (8, "default")
    assert shown["policies.solver.engine.use"] == ("toy_engine", str(run_file))


def test_contexts_differ_in_seed_and_folder(site: Any, run_file: Path, tmp_path: Path) -> None:
    config = read_config(run_file, (), site.catalog()).config
    contexts = [
        component_context(config, tmp_path, "raas", policy, name, "t")
        for policy in ("", "solver")
        for name in ("a", "b")
    ]
    assert len({context.seed for context in contexts}) == 4
    assert contexts[0].directory == tmp_path / "state" / "a"
    again = component_context(config, tmp_path, "raas", "", "a", "t")
    assert again == contexts[0]


def test_an_unknown_component_of_a_broken_plugin_keeps_the_cause(site: Any, run_file: Path) -> None:
    site.add("toy_brk", "raise ValueError('at import')")
    found = problems(run_file, site, "reward={use='toy_brk'}")
    assert "ValueError: at import" in found[0]
    with pytest.raises(PluginError) as caught:
        site.catalog().select("reward", "toy_brk")
    assert isinstance(caught.value.__cause__, ValueError)
