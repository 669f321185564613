"""Plugins that cannot be used, installed beside healthy ones: a run that does not name them never notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core import catalog
from astraflow_core.errors import ConfigError
from astraflow_core.installed import discovery
from astraflow_core.installed.distributions import Index
from astraflow_runtime.cli import main
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.saved import dump_toml
from astraflow_runtime.launch.planning.plugins_file import write_plugins
from astraflow_runtime.launch.planning.prepare import described_plugins

LOSS = """
@hookimpl
def astraflow_algorithms():
    return [Component("{name}", "parts:Loss", "a loss")]
"""
TARNISHED = {
    "broken": "'broken' (fake-broken 1.0) cannot be used: its manifest .* ImportError: torn",
    "future": "'future' .* cannot be used: written for plugin API 3.1; this core speaks 1.0",
    "hidden": r"'hidden' .* cannot be used: disabled by \[plugins\] disable",
    "twin": "'twin' .* cannot be used: 2 distributions provide .*: left, right",
}


@pytest.fixture
def museum(site: Any, run_file: Path, manifest: str) -> Path:
    """A valid run, with one plugin of each bad state installed, and one that is ambiguous with the run's."""
    site.add("broken", "raise ImportError('torn')")
    site.add("future", "ASTRAFLOW_API = (3, 1)")
    site.add("hidden", manifest + LOSS.format(name="secret"))
    for distribution in ("left", "right"):
        site.add("twin", manifest + LOSS.format(name="twin"), distribution=distribution)
    site.add("rival", manifest + LOSS.format(name="rival_loss"))
    run_file.write_text(run_file.read_text() + '[plugins]\ndisable = ["hidden"]\n')
    return run_file


def named(name: str) -> list[str]:
    return [f"policies.solver.algorithm.use={name}"]


def test_a_run_that_names_none_of_them_is_as_it_was(museum: Path) -> None:
    loaded = load_config(museum)
    assert loaded.components["policies.solver.algorithm"][0].plugin == "toy"
    states = {p.name: p.state.value for p in loaded.catalog.plugins if p.name in TARNISHED}
    assert states == {
        "broken": "broken",
        "future": "incompatible",
        "hidden": "disabled",
        "twin": "conflicting",
    }


@pytest.mark.parametrize("plugin", TARNISHED)
def test_a_run_that_names_one_fails_with_its_problem(museum: Path, plugin: str) -> None:
    for use in (f"{plugin}/loss", plugin):
        with pytest.raises(
            ConfigError, match=TARNISHED[plugin].replace("(fake", r"\(fake").replace("0)", r"0\)")
        ):
            load_config(museum, named(use))


def test_a_second_of_the_name_fails_only_the_unqualified(
    site: Any, museum: Path, manifest: str
) -> None:
    site.add("usurper", manifest + LOSS.format(name="toy_loss"))
    with pytest.raises(ConfigError, match="name one of: 'toy/toy_loss' or 'usurper/toy_loss'"):
        load_config(museum)
    loaded = load_config(museum, named("toy/toy_loss"))
    assert loaded.components["policies.solver.algorithm"][0].plugin == "toy"


def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin ``toy`` is of this project."""
    index = Index(components={"algorithm": {"toy_loss": "fake-toy"}})
    for module in (catalog, discovery):
        monkeypatch.setattr(module, "index", lambda: index)


def test_a_second_of_a_name_of_ours_changes_no_run(
    site: Any, museum: Path, manifest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(monkeypatch)
    site.add("usurper", manifest + LOSS.format(name="toy_loss"))
    loaded = load_config(museum)
    assert loaded.components["policies.solver.algorithm"][0].plugin == "toy"
    note = (
        "policies.solver.algorithm: 'toy_loss' is toy/toy_loss; usurper/toy_loss has the same name"
    )
    assert note in loaded.notes
    assert load_config(museum, named("usurper/toy_loss")).notes == ()


def test_a_second_plugin_of_a_name_of_ours_does_not_displace_it(
    site: Any, museum: Path, manifest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(monkeypatch)
    site.add("toy", manifest + LOSS.format(name="toy_loss"), distribution="other-toy")
    loaded = load_config(museum)
    assert loaded.components["policies.solver.algorithm"][0].distribution == "fake-toy"
    states = {p.distribution: p.state for p in loaded.catalog.plugins if p.name == "toy"}
    assert states == {"fake-toy": "healthy", "other-toy": "conflicting"}


def test_a_run_that_has_begun_keeps_the_plugin_that_it_began_with(
    site: Any, museum: Path, manifest: str, tmp_path: Path
) -> None:
    loaded = load_config(museum)
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(dump_toml(loaded.config))
    write_plugins(folder, described_plugins(loaded))
    site.add("usurper", manifest + LOSS.format(name="toy_loss"))
    again = load_config(folder / "config.toml")
    assert again.components["policies.solver.algorithm"][0].plugin == "toy"
    assert again.catalog.select("algorithm", "toy_loss").plugin == "toy"


def test_all_are_listed_and_nothing_fails(museum: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    shown, _, unusable = capsys.readouterr().out.partition("cannot be used")
    assert "toy_loss" in shown and "rival_loss" in shown and "secret" in shown
    for plugin in ("broken", "future", "twin"):
        assert f"\n{plugin} " in unusable
    assert main(["doctor"]) == 0
