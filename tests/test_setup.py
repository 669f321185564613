"""What the set-up installs."""

from __future__ import annotations

import dev
import pytest
from workspace import ROOT, metadata_of, required


@pytest.mark.parametrize(
    ("arguments", "profile"),
    [
        ([], "run"),
        (["--set", "run.seed=1"], "run"),
        (["examples/quickstart.toml"], "run"),
        (["--no-live", "examples/smollm2.toml"], "test"),
        ([str(ROOT / "examples" / "two_policies.toml"), "--json"], "test"),
        (["/elsewhere/mine.toml"], "run"),
        (["--resume", "runs/quickstart-1"], "run"),
    ],
)
def test_an_example_is_run_with_every_plugin_installed(
    arguments: list[str], profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert dev.profile_of(arguments) == profile


def _run_requirements(package: dev.Package) -> set[str]:
    project = metadata_of(package.path)["project"]
    extras = project.get("optional-dependencies", {})
    return required([*project.get("dependencies", ()), *extras.get("runtime", ())])


def test_what_the_quickstart_installs_needs_no_other_package_of_the_workspace() -> None:
    """A package that is not published could come from nowhere else."""
    packages = dev.packages()
    names = {package.name for package in packages}
    installed = {package.name for package in packages if package.quickstart}
    assert installed
    lacking = {
        f"{package.name} needs {name}: set [tool.astraflow] quickstart there"
        for package in packages
        if package.quickstart
        for name in _run_requirements(package) & names - installed
    }
    assert not lacking, "\n".join(sorted(lacking))
