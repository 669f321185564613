"""What ``plugin new`` writes, all kinds at once: it installs, passes its tests and ``plugin check``, and runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from astraflow_contrib_plugin.from_example import examples, files_of_example
from astraflow_contrib_plugin.scaffolding import KINDS, PluginNames, files_of, write
from astraflow_runtime.cli.installation.check_report import FILE, digest_of

DEADLINE_S = 400
EXAMPLES = sorted(examples())
FOLDERS = [*KINDS, *(f"{kind}_example" for kind in EXAMPLES)]
TABLE = """
extends = "engine/run.toml"

[prompts]
use = "my_prompt_source"

[workflow]
use = "my_workflow"

[reward]
use = "my_reward"

[policies.solver]
model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1&alphabet=%20$%0A.,%3A%2B%3D0123456789Answer"
data = [{ use = "my_data_policy" }]
trainer = { use = "my_trainer" }
transport = { use = "my_transport" }

[trackers.mine]
use = "my_tracker"

[launcher]
use = "my_launcher"

[run]
steps = 2
"""
"""A run whose components are all from the templates, but for the algorithm: the template's needs a framework."""

EACH = """
import sys
from astraflow_runtime.cli import main

sys.exit(any(main(["config", "show", file]) != int(sys.argv[1]) for file in sys.argv[2:]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass
class Made:
    """``folder`` has a folder for each kind, ``site`` what was installed; the modules of AstraFlow are read once by mypy."""

    folder: Path
    site: Path
    cache: Path

    def run(self, *arguments: str, expected: int = 0, installed: bool = True) -> str:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {"PYTHONPATH": str(self.site)} if installed else {}
        environment["MYPY_CACHE_DIR"] = str(self.cache / "mypy")
        environment["XDG_CACHE_HOME"] = str(self.cache)
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout if "--json" in arguments else done.stdout + done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    base = tmp_path_factory.mktemp("made")
    everything = Made(base / "plugins", base / "site", base / "cache")
    everything.folder.mkdir()
    for kind in KINDS:
        write(everything.folder / kind, files_of(PluginNames(kind, f"my_{kind}")))
    for kind in EXAMPLES:
        write(
            everything.folder / f"{kind}_example",
            files_of_example(PluginNames(kind, f"own_{kind}")),
        )
    pip = ("pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    everything.run("-m", *pip, "--target", str(everything.site), *(f"./{k}" for k in FOLDERS))
    return everything


def test_they_satisfy_ruff_and_mypy(made: Made) -> None:
    made.run("-m", "ruff", "check", "--config", "reward/pyproject.toml", ".")
    made.run("-m", "mypy", "--strict", *(f"{folder}/src" for folder in FOLDERS))


def test_they_pass_their_tests(made: Made) -> None:
    options = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-c", "reward/pyproject.toml")
    said = made.run(
        "-m", "pytest", *options, "--rootdir", ".", *(f"{kind}/tests" for kind in KINDS)
    )
    assert " passed" in said


def test_they_run_and_are_refused_where_they_are_not_installed(made: Made) -> None:
    files = [f"{folder}/run.toml" for folder in FOLDERS if not folder.startswith("command")]
    made.run("-c", EACH, "0", *files)
    refused = made.run("-c", EACH, "2", *files, installed=False)
    assert [k for k in KINDS if k != "command" and f"my_{k}" not in refused] == []

    (made.folder / "all.toml").write_text(TABLE)
    assert "finished after 2 of 2 steps" in made.run("-m", "astraflow_runtime", "run", "all.toml")
    used = json.loads(next(made.folder.glob("runs/*/plugins.json")).read_text())
    assert len([p for p in used if p["plugin"].startswith("my_")]) == len(KINDS) - 3
    (run,) = (made.folder / "runs").iterdir()
    assert "solver" in made.run("-m", "astraflow_runtime", "my-command", "--run", str(run))


def test_a_check_passes_and_why_shows_its_report(made: Made, tmp_path: Path) -> None:
    """Of a copy: the report is written into the package."""
    copy = Made(tmp_path / "copy", tmp_path / "site", made.cache)
    shutil.copytree(made.folder / "reward", copy.folder)
    project = copy.folder / "pyproject.toml"
    urls = project.read_text().replace("# [project.urls]\n# ", "[project.urls]\n")
    project.write_text(urls)
    report = json.loads(copy.run("-m", "astraflow_runtime", "plugin", "check", ".", "--json"))
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert set(verdicts.values()) == {"passed"}, report["checks"]
    assert report["verdict"] == "passed" and report["digest"] == digest_of(report)
    assert report["distribution"]["summary"] == "AstraFlow reward my_reward"
    assert report["distribution"]["links"] == [
        {"label": "Homepage", "url": "https://example.org/my-reward"}
    ]
    assert report["plugins"][0]["components"] == [
        {"kind": "reward", "name": "my_reward", "capabilities": []}
    ]
    assert report["suites"]["reward"]["caught"] == report["suites"]["reward"]["mutants"] > 4
    assert str(copy.folder) not in json.dumps(report)

    shutil.copytree(made.site, copy.site, dirs_exist_ok=True)
    package = copy.site / "astraflow_plugin_my_reward"

    def why() -> str:
        return copy.run("-m", "astraflow_runtime", "plugins", "why", "my_reward")

    assert "check " not in why()
    (package / FILE).write_text(json.dumps(report))
    assert (
        f"passed (11 of 11 checks passed), as its authors say; report {report['digest']}" in why()
    )
    (package / "component.py").open("a").write("# changed\n")
    assert "is of other files of version 0.1.0" in why()


def test_a_plugin_with_many_mistakes_is_told_each(made: Made, tmp_path: Path) -> None:
    bad = Made(tmp_path / "bad", tmp_path / "site", made.cache)
    shutil.copytree(made.folder / "reward", bad.folder)
    package = bad.folder / "src" / "astraflow_plugin_my_reward"
    (package / "py.typed").unlink()
    (bad.folder / "LICENSE").unlink()
    project = (bad.folder / "pyproject.toml").read_text()
    (bad.folder / "pyproject.toml").write_text(
        project.replace('license-files = ["LICENSE"]\n', "").replace(">=0.1,<0.2", ">=0.1")
    )
    component = (package / "component.py").read_text()
    (package / "component.py").write_text(
        component.replace(
            ', description="Compare without regard to upper and lower case."', ""
        ).replace("return alike /", "import astraflow_runtime.raas\n        return str(alike) *")
    )
    (bad.folder / "tests" / "test_own.py").write_text("def test_it() -> None:\n    assert not 1\n")
    said = bad.run("-m", "astraflow_runtime", "plugin", "check", expected=1)
    for part in (
        "failed       requirements",
        "failed       licence",
        "failed       py.typed",
        "astraflow_plugin_my_reward/component.py:35: imports astraflow_runtime.raas, which is private",
        "component.py:36: error: Incompatible return value type",
        "reward 'my_reward': the key 'ignore_case' has no description",
        "tests/test_own.py::test_it: assert not 1",
        "failed; report sha256:",
    ):
        assert part in said, f"{part}\n{said}"
    assert "passed       manifest" in said
