"""Plugins outside the workspace: built, installed and used without a line of core changed."""

from __future__ import annotations

import json
from pathlib import Path

import dev
import downstream
import pytest
from downstream import Downstream
from wheels import build, clean_environment, execute

from astraflow_testing.runs import TABLE_RUN

OUTSIDE = dev.ROOT / "examples" / "plugins"
PACKAGES = sorted(file.parent for file in OUTSIDE.glob("*/pyproject.toml"))
NEEDED = {
    "core",
    "wire",
    "weights",
    "engine_host",
    "gateway",
    "environments",
    "launching",
    "tiny_model",
    "runtime",
    "testing",
    "policy_tools",
    "http",
    "tiny_models",
    "prompts",
    "rewards",
    "single_turn",
    "three_zones",
    "trackers",
}
"""Folders of the packages that the run of the table needs."""

CONFIG = OUTSIDE / "run.toml"
EASY = {
    "digits = 2": "digits = 1",
    "steps = 60": "steps = 8",
    "after = 1,": "after = 1, reward = 0.0,",
    "every = 20": "every = 4",
}
"""A short run on few prompts, each of which rests after its first group."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.turns(
        "examples/plugins/**/*.py",
        "examples/plugins/**/*.toml",
        "scripts/downstream.py",
        "scripts/wheels.py",
        "core/src/astraflow_core/protocols/**/*.py",
        "core/src/astraflow_core/hookspecs.py",
        "testing/src/astraflow_testing/conformance/**/*.py",
        "*/pyproject.toml",
        "libs/*/pyproject.toml",
    ),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Folder of a package -> its wheel: the outside plugins, and what a small run needs."""
    needed = [package.path for package in dev.packages() if package.path.name in NEEDED]
    assert len(needed) == len(NEEDED)
    out, work = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("sdists")
    return {path: made[1] for path, made in build([*needed, *PACKAGES], out, work).items()}


def test_they_are_listed_and_drive_a_run_in_a_clean_environment(
    wheels: dict[Path, Path], tmp_path: Path
) -> None:
    names = [wheel.name.split("-")[0].replace("_", "-") for wheel in wheels.values()]
    folder = next(iter(wheels.values())).parent
    astraflow = str(clean_environment(tmp_path / "venv", folder, *names).parent / "astraflow")

    listed = json.loads(execute(astraflow, "plugins", "--json"))
    provided = {
        (component["kind"], component["name"]): plugin
        for plugin in listed
        for component in plugin["components"]
    }
    for kind, name in (("algorithm", "leave_one_out"), ("data_policy", "mastered")):
        plugin = provided[kind, name]
        assert plugin["distribution"] == f"astraflow-plugin-{name.replace('_', '-')}"
        assert plugin["problem"] is None

    (tmp_path / "table.toml").write_text(TABLE_RUN, encoding="utf-8")
    text = CONFIG.read_text(encoding="utf-8").replace("../quickstart.toml", "table.toml")
    for ours, easy in EASY.items():
        assert ours in text
        text = text.replace(ours, easy, 1)
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    execute(
        *(astraflow, "run", str(tmp_path / "run.toml")),
        *("--set", f"run.directory='{tmp_path / 'runs'}'"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )

    (run,) = (tmp_path / "runs").iterdir()
    summary, status, plugins = (
        json.loads((run / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("summary", "status", "plugins")
    )
    assert (summary["state"], summary["policies"]["solver"]["updates"]) == ("finished", 8)
    used = {plugin["plugin"]: plugin["components"] for plugin in plugins}
    assert used["leave_one_out"] == {"policies.solver.algorithm": "leave_one_out"}
    assert "mastered" in used["mastered"].values()
    assert status["refused_prompts"]["mastered"] > 0
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines if '"grad_norm"' in line]
    assert any(step["metrics"]["grad_norm"] > 0 for step in steps)
    best = json.loads(execute(astraflow, "best-step", "--run", str(run), "--json"))
    assert best["solver"]["value"] == max(step["reward"] for step in steps)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_they_pass_their_own_tests(package: Path, tmp_path: Path) -> None:
    assert downstream.problems(Downstream(path=package), tmp_path, 300) == []
