"""``astraflow plugins why``: the reason, the evidence and what fixes it, for everything a name may mean."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.installed.discovery import DISABLE_VARIABLE
from astraflow_runtime.cli import main

LOSS = """
@hookimpl
def astraflow_algorithms():
    return [Component("loss", "{module}:Loss", "a loss")]
"""
ENGINE = """
@hookimpl
def astraflow_engines():
    return [Component("quick", "{module}:Quick", "an engine", None, frozenset({{"score"}}))]
"""

Told = dict[str, dict[str, Any]]


@pytest.fixture
def why(capsys: pytest.CaptureFixture[str]) -> Any:
    """``why(NAME …)``: subject -> its explanation; the first one of a test is compared with what people see."""
    compared = False

    def ask(*arguments: str, code: int = 0) -> Told:
        nonlocal compared
        assert main(["plugins", "why", *arguments, "--json"]) == code
        told = json.loads(capsys.readouterr().out)
        if compared:
            return {record["subject"]: record for record in told}
        compared = True
        assert main(["plugins", "why", *arguments]) == code
        shown = capsys.readouterr().out
        for record in told:
            for part in (
                record["subject"],
                record["verdict"],
                record["fix"] or "",
                *record["traceback"],
            ):
                assert part in shown
        return {record["subject"]: record for record in told}

    return ask


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plugins", "why", *arguments]) == 2
    return capsys.readouterr().err


def test_a_healthy_component(site: Any, why: Any) -> None:
    site.toy()
    for name in (
        "toy_filter",
        "data_policy/toy_filter",
        "toy/toy_filter",
        "data_policy/toy/toy_filter",
    ):
        ((subject, told),) = why(name).items()
        assert subject == "data_policy toy/toy_filter"
        assert told["state"] == "healthy"
        assert 'data = [{ use = "toy_filter" }]' in told["verdict"]
    assert (told["distribution"], told["version"]) == ("fake-toy", "1.0")
    assert told["entry_point"] == "toy = fake_toy_manifest"
    assert told["plugin_api"] == told["core_api"] == "1.0"
    assert told["file"] == str(site.folder / "fake_toy_manifest.py")
    assert told["capabilities"] == ["accept"]
    assert told["about"] == "What the toys are."
    assert "ratio  (float ≥ 0, ≤ 1; default 0.5)" in told["keys"]
    assert told["also_provided_as"] == told["conflicts"] == []


def test_a_plugin_of_several_components(site: Any, why: Any) -> None:
    site.toy()
    told = why("toy")["plugin toy"]
    assert told["state"] == "healthy"
    assert "reward toy_match: reward" in told["provides"]


@pytest.mark.slow
def test_a_broken_plugin_shows_the_end_of_its_traceback(site: Any, manifest: str, why: Any) -> None:
    site.add(
        "bad",
        "import bad_helper",
        modules={"bad_helper": "def start():\n    raise OSError('no device')\nstart()\n"},
    )
    told = why("bad")["plugin bad"]
    assert told["state"] == "broken"
    assert "OSError: no device" in told["verdict"]
    assert told["traceback"][-1] == "OSError: no device"
    assert told["traceback"][-2].startswith(f"{site.folder / 'bad_helper.py'}:2 in start: raise")
    assert all("importlib" not in line and "discovery.py" not in line for line in told["traceback"])
    assert "pip uninstall fake-bad" in told["fix"]


@pytest.mark.parametrize(
    ("api", "fix"),
    [("(2, 0)", "astraflow-core"), ("(1, 7)", "astraflow-core"), ("(0, 9)", "fake-alien")],
)
def test_an_incompatible_plugin(site: Any, why: Any, api: str, fix: str) -> None:
    site.add("alien", f"ASTRAFLOW_API = {api}")
    told = why("alien")["plugin alien"]
    assert told["state"] == "incompatible"
    assert told["plugin_api"] == api.strip("()").replace(", ", ".")
    assert told["core_api"] == "1.0"
    assert told["fix"] == f"pip install --upgrade {fix}"


def test_disabled_by_the_environment_or_by_the_run(
    site: Any, run_file: Path, manifest: str, why: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = site.add("shy", manifest + LOSS.format(module="shy_parts"))
    text = run_file.read_text()
    for table, by, fix in (
        ('disable = ["shy"]', "disabled by [plugins] disable", "out of [plugins] disable"),
        ('only = ["toy"]', "not in [plugins] only", "to [plugins] only"),
    ):
        run_file.write_text(f"{text}[plugins]\n{table}\n")
        told = why("shy", str(run_file))["plugin shy"]
        assert (told["state"], told["verdict"]) == ("disabled", f"not imported: {by}")
        assert fix in told["fix"]
        assert told["chosen_by"] == [f"nothing: not named in {run_file}"]
    monkeypatch.setenv(DISABLE_VARIABLE, "shy")
    told = why("shy")["plugin shy"]
    assert told["verdict"] == f"not imported: disabled by {DISABLE_VARIABLE}"
    assert module not in sys.modules


def test_two_distributions_with_one_plugin_name(site: Any, manifest: str, why: Any) -> None:
    for distribution in ("one", "two"):
        site.add("same", manifest, distribution=distribution)
    told = why("same")["plugin same"]
    assert told["state"] == "conflicting"
    assert "one, two" in told["verdict"]


def test_an_ambiguous_component_says_with_whom_and_how_to_qualify_it(
    site: Any, manifest: str, why: Any
) -> None:
    for name in ("mine", "dup"):
        module = f"{name}_parts"
        site.add(
            name, manifest + LOSS.format(module=module), modules={module: "def Loss(c, x): ..."}
        )
    told = why("loss")
    assert set(told) == {"algorithm dup/loss", "algorithm mine/loss"}
    mine = told["algorithm mine/loss"]
    assert mine["state"] == "ambiguous"
    assert "'dup/loss'" in mine["verdict"]
    assert mine["fix"] == 'algorithm = { use = "mine/loss" } in [policies.NAME]'
    assert why("mine/loss")["algorithm mine/loss"]["state"] == "healthy"


def test_a_runtime_that_is_not_installed(site: Any, manifest: str, why: Any) -> None:
    site.add(
        "heavy",
        manifest + ENGINE.format(module="heavy_parts"),
        metadata='Requires-Dist: huge-backend>=2; extra == "runtime"\n',
    )
    told = why("quick")["engine heavy/quick"]
    assert told["state"] == "incomplete"
    assert "huge-backend>=2 (not installed)" in told["verdict"]
    assert told["fix"] == "pip install 'fake-heavy[runtime]'"
    whole = why("heavy")["plugin heavy"]
    assert (whole["state"], whole["fix"]) == ("incomplete", told["fix"])


def test_a_runtime_that_wants_an_interpreter_of_its_own(site: Any, manifest: str, why: Any) -> None:
    site.add(
        "apart",
        f"{manifest}ASTRAFLOW_ENVIRONMENT = 'parts:environment'\n{ENGINE.format(module='parts')}",
        metadata='Requires-Dist: huge-backend>=2; extra == "runtime"\n',
    )
    fix = why("apart")["plugin apart"]["fix"]
    assert (
        fix
        == "astraflow env create apart --plugin apart, and python = 'env:apart' in the role's table"
    )


def test_a_runtime_that_is_installed(site: Any, manifest: str, why: Any) -> None:
    site.add("light", manifest, metadata='Requires-Dist: pluggy; extra == "runtime"\n')
    told = why("fake-light")["plugin light"]
    assert told["runtime"].startswith("pluggy 1.")
    site.toy()
    assert why("toy")["plugin toy"]["runtime"] == "no missing packages"


def test_pins_that_clash_name_who_holds_the_other_version(
    site: Any, manifest: str, why: Any
) -> None:
    site.add("backend", manifest, distribution="backend", version="3.0")
    site.add("holder", manifest, distribution="holder", metadata="Requires-Dist: backend>=3\n")
    site.add(
        "old",
        manifest + ENGINE.format(module="old_parts"),
        metadata='Requires-Dist: backend==2.0; extra == "runtime"\n',
    )
    told = why("quick")["engine old/quick"]
    assert told["conflicts"] == ["backend==2.0 (3.0 is installed); holder 1.0 needs backend>=3"]
    assert told["fix"] == (
        'astraflow env create old --plugin old, and engine = { use = "quick", python = "env:old" }'
    )


def test_a_component_that_cannot_be_imported(site: Any, manifest: str, why: Any) -> None:
    site.add(
        "torn",
        manifest + LOSS.format(module="torn_parts"),
        modules={"torn_parts": "raise RuntimeError('built for another driver')\n"},
    )
    told = why("algorithm/loss")["algorithm torn/loss"]
    assert told["state"] == "broken"
    assert "of fake-torn 1.0 cannot be imported: RuntimeError: built for" in told["verdict"]
    assert told["traceback"][0].startswith(f"{site.folder / 'torn_parts.py'}:1 in <module>")
    assert main(["plugins"]) == 0


def test_a_target_that_the_package_lacks_is_left_to_its_authors(
    site: Any, manifest: str, why: Any
) -> None:
    site.add("torn", manifest + LOSS.format(module="torn_parts"))
    told = why("algorithm/loss")["algorithm torn/loss"]
    assert "cannot be imported: No module named 'torn_parts'" in told["verdict"]
    assert "report it to its authors; if it is your own, fix the problem" in told["fix"]
    site.add(
        "worn",
        manifest + LOSS.format(module="worn_parts"),
        modules={"worn_parts": "import absent\nclass Loss: pass\n"},
    )
    assert "--force-reinstall" in why("algorithm/worn/loss")["algorithm worn/loss"]["fix"]


def test_a_pairing_that_no_installed_partner_allows(site: Any, run_file: Path, why: Any) -> None:
    run_file.write_text(run_file.read_text() + '[plugins]\nonly = ["toy"]\n')
    told = why("transport/toy_ring", str(run_file))["transport toy/toy_ring"]
    (conflict,) = told["conflicts"]
    assert conflict == (
        "transport 'toy_ring' needs engine capability weights.collective; 'toy_engine' lacks it "
        "(no installed engine fits)"
    )
    assert why("transport/toy_full", str(run_file))["transport toy/toy_full"]["conflicts"] == []


@pytest.mark.slow
def test_code_in_no_package(
    site: Any, why: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_me.py").write_text(
        'class Loss:\n    """Mine."""\n    capabilities = {\'entropy\'}\n'
        "    def __init__(self, config, context): ...\nNOTHING = 3\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    told = why("beside_me:Loss")["beside_me:Loss"]
    assert (told["state"], told["about"]) == ("unpackaged", "Mine.")
    assert told["provided_by"] == "no distribution"
    assert told["fits"] == [
        'trainer = { use = "beside_me:Loss" } in [policies.NAME]',
        'algorithm = { use = "beside_me:Loss" } in [policies.NAME]',
    ]
    told = why("reward/beside_me:Loss", code=2)["reward beside_me:Loss"]
    assert told["state"] == "broken"
    assert "entropy" in told["verdict"]
    assert (
        "expected a class or a function"
        in why("beside_me:NOTHING", code=2)["beside_me:NOTHING"]["verdict"]
    )
    told = why("beside_you:Loss", code=2)["beside_you:Loss"]
    assert told["traceback"] == ["ModuleNotFoundError: No module named 'beside_you'"]
    del sys.modules["beside_me"]


def test_the_module_of_a_packaged_component(site: Any, why: Any) -> None:
    site.toy()
    told = why("toy_parts:Part")["toy_parts:Part"]
    assert "algorithm toy/toy_loss" in told["also_provided_as"]
    assert "without the keys and capabilities" in told["verdict"]


def test_what_a_run_chooses(site: Any, run_file: Path, manifest: str, why: Any) -> None:
    site.add("dup", manifest + LOSS.format(module="p").replace('"loss"', '"toy_loss"'))
    path = "policies.solver.algorithm"
    run, ours, theirs = str(run_file), "algorithm toy/toy_loss", "algorithm dup/toy_loss"
    assert why("toy", run)["plugin toy"]["chosen_by"] == [
        "prompts = 'toy_file'",
        "workflow = 'toy_turn'",
        "policies.solver.trainer = 'toy_trainer'",
        "policies.solver.engine = 'toy_engine'",
        "policies.solver.transport = 'toy_full'",
    ]
    for told in why("toy_loss", run).values():
        (chosen,) = told["chosen_by"]
        both = "'dup/toy_loss' or 'toy/toy_loss'"
        assert chosen.startswith(f"{path}, which fails: ") and chosen.endswith(both)
    told = why("toy_loss", run, "--set", f"{path}.use=toy/toy_loss")
    assert told[ours]["chosen_by"] == [f"{path} = 'toy/toy_loss'"]
    assert told[theirs]["chosen_by"] == [f"nothing: not named in {run}"]
    told = why("dup", run, "--set", 'plugins.enable=["dup"]')["plugin dup"]
    assert told["chosen_by"] == ["[plugins] enable"]
    assert why("local", run)["launcher runtime/local"]["chosen_by"] == ["launcher = 'local'"]


def test_names_that_mean_nothing(
    site: Any, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.add("bad", "import nothing_of_this_name")
    text = refused(capsys, "toy_fliter")
    assert "did you mean 'toy_filter'" in text
    assert "components are unknown: 'bad' (broken)" in text
    assert "did you mean 'algorithm/toy_loss'" in refused(capsys, "engine/toy_loss")
    assert "did you mean 'toy'? these plugins could not be read" in refused(capsys, "toyy")
    assert "did you mean 'run.toml'" in refused(capsys, "toy", str(run_file.with_name("rum.toml")))


@pytest.mark.slow
def test_a_path_that_no_run_can_use_is_a_mistake_and_of_no_kind(why: Any) -> None:
    for name, told in (("os:environ", "is an object of type"), ("os:nope", "has no attribute")):
        verdict = why(name, code=2)[name]["verdict"]
        assert told in verdict and "engine" not in verdict
    told = why("reward/os:environ", code=2)["reward os:environ"]["verdict"]
    assert "cannot be used: reward 'os:environ'" in told


def test_the_name_of_a_kind_is_reported_as_one(
    site: Any, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.add("quick", manifest + ENGINE.format(module="quick_engine"))
    told = refused(capsys, "engine")
    assert "'engine' is installed; it is a kind; installed components of that kind: " in told
    assert "quick" in told and "`astraflow plugins why engine/NAME`" in told
    assert "did you mean" not in told
