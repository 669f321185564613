"""What ``plugin new`` writes, all kinds at once: it installs, passes its tests and ``plugin check``, and runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import venv
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import dev
import pytest
from wheels import build

from astraflow_contrib_plugin.from_example import examples, files_of_example
from astraflow_contrib_plugin.scaffolding import KINDS, PluginNames, files_of, write
from astraflow_runtime.cli.installation.check_report import FILE, digest_of

DEADLINE_S = 600
EXAMPLES = sorted(examples())
FOLDERS = [*KINDS, *(f"{kind}_example" for kind in EXAMPLES)]
COMMAND = "astraflow-contrib-plugin"
DISTRIBUTIONS = [f"astraflow-plugin-my-{kind.replace('_', '-')}" for kind in KINDS]
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
algorithm = { use = "my_algorithm" }

[trackers.mine]
use = "my_tracker"

[launcher]
use = "my_launcher"

[run]
steps = 2
"""
"""A run whose components are all from the templates, but for the environment, which ``my_workflow`` does not play."""

WORLD = """
extends = "engine/run.toml"

[workflow]
use = "environment"

[workflow.environment]
use = "my_environment"

[policies.solver]
model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1&context=256&alphabet=%20$%0A.,%3A%3F%2B%3D-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

[run]
steps = 1
"""

EACH = """
import sys
from astraflow_runtime.cli import main

sys.exit(any([main(command.split()) != int(sys.argv[1]) for command in sys.argv[2:]]))
"""
"""Many commands in one process; exit code 1 if one ends with another code than the first argument."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.turns(
        "contrib/commands/plugin/src/**/*.py",
        "contrib/commands/plugin/src/**/*.json",
        "contrib/commands/plugin/src/**/*.txt",
        "contrib/commands/plugin/src/**/*.toml",
        "examples/plugins/**/*.py",
        "examples/plugins/*/pyproject.toml",
        "scripts/wheels.py",
        "core/src/astraflow_core/protocols/**/*.py",
        "core/src/astraflow_core/hookspecs.py",
        "testing/src/astraflow_testing/conformance/**/*.py",
        "*/pyproject.toml",
        "libs/*/pyproject.toml",
        unit="made plugins",
    ),
]


@dataclass
class Made:
    """``folder`` has a folder for each kind, ``index`` the wheels of all and of AstraFlow, ``python`` is an interpreter that has
    nothing of AstraFlow but what was installed from there; mypy reads the modules of AstraFlow once."""

    folder: Path
    index: Path
    python: Path
    cache: Path
    path: Path | None = None

    def run(self, *arguments: str, expected: int = 0) -> str:
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ASTRAFLOW"))
        }
        environment |= {"PYTHONPATH": str(self.path)} if self.path else {}
        environment["MYPY_CACHE_DIR"] = str(self.cache / "mypy")
        environment["XDG_CACHE_HOME"] = str(self.cache)
        done = subprocess.run(
            [str(self.python), *arguments],
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

    def site(self) -> Path:
        """Where packages are installed."""
        (found,) = self.python.parents[1].glob("lib/*/site-packages")
        return found


def of_others(site: Path) -> None:
    """Put third-party packages into a new environment: as links, since downloading and unpacking PyTorch is not under
    test. Files that mypy would take for the user's if they were links are copied."""
    programs = site.parents[2] / "bin"
    for distribution in metadata.distributions():
        if distribution.name.startswith("astraflow"):
            continue
        for file in distribution.files or ():
            there, top = Path(str(distribution.locate_file(file))), file.parts[0]
            if file.parts[-2:] == ("bin", "ruff"):
                (programs / "ruff").symlink_to(there.resolve())
            elif len(file.parts) == 1 and there.is_file():
                shutil.copy(there, site / top)
            elif top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))


def ours(folder: Path) -> list[Path]:
    """The packages of this tree that the extras ``run`` and ``test`` of the plugins below ``folder`` need, and the command that checks them."""
    packages = {p.name: p.path for p in dev.packages()}
    found = {COMMAND}
    waiting = [packages[COMMAND], *(folder / name for name in FOLDERS)]
    while waiting:
        project = tomllib.loads((waiting.pop() / "pyproject.toml").read_text())["project"]
        optional = project.get("optional-dependencies", {})
        needed = [
            *project.get("dependencies", ()),
            *(r for each in optional.values() for r in each),
        ]
        names = {re.split(r"[\[<>=~! ;]", requirement)[0] for requirement in needed}
        waiting += [packages[name] for name in (names & packages.keys()) - found]
        found |= names & packages.keys()
    return [packages[name] for name in found]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    base = tmp_path_factory.mktemp("made")
    python = base / "clean" / "bin" / "python"
    everything = Made(base / "plugins", base / "index", python, base / "cache")
    for folder in (everything.folder, everything.index, base / "sdists"):
        folder.mkdir()
    for kind in KINDS:
        write(everything.folder / kind, files_of(PluginNames(kind, f"my_{kind}")))
    for kind in EXAMPLES:
        write(
            everything.folder / f"{kind}_example",
            files_of_example(PluginNames(kind, f"own_{kind}")),
        )
    folders = [everything.folder / folder for folder in FOLDERS]
    wheels = build([*folders, *ours(everything.folder)], everything.index, base / "sdists")
    venv.create(base / "clean", with_pip=False, symlinks=True)
    of_others(everything.site())
    names = [wheel.name.split("-")[0] for _, wheel in wheels.values()]
    pip = ("pip", "install", "--quiet", "--no-index", "--find-links", str(everything.index))
    everything.run("-m", *pip, "--disable-pip-version-check", *names)
    return everything


def test_examples_satisfy_ruff_and_mypy(made: Made) -> None:
    made.run("-m", "ruff", "check", "--config", "reward/pyproject.toml", ".")
    made.run("-m", "mypy", "--strict", *(f"{kind}_example/src" for kind in EXAMPLES))


def test_a_check_passes_and_why_shows_its_report(made: Made, tmp_path: Path) -> None:
    """Of a copy: the report is written into the package."""
    copy = replace(made, folder=tmp_path / "copy", path=tmp_path / "site")
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

    for part in made.site().glob("astraflow_plugin_my_reward*"):
        shutil.copytree(part, tmp_path / "site" / part.name)
    package = tmp_path / "site" / "astraflow_plugin_my_reward"

    def why() -> str:
        return copy.run("-m", "astraflow_runtime", "plugins", "why", "my_reward")

    assert "check " not in why()
    (package / FILE).write_text(json.dumps(report))
    assert (
        f"passed (11 of 11 checks passed), as its authors say; report {report['digest']}" in why()
    )
    (package / "component.py").open("a").write("# changed\n")
    assert "is for other files of version 0.1.0" in why()


def test_each_mistake_of_a_plugin_is_reported(made: Made, tmp_path: Path) -> None:
    bad = replace(made, folder=tmp_path / "bad")
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


def test_each_is_checked_used_and_refused_once_it_is_gone(made: Made) -> None:
    """The last test: it removes them. A check runs the tests of a plugin, with the suite of its kind."""
    said = made.run("-c", EACH, "0", *(f"plugin check {kind}" for kind in KINDS))
    assert said.count("\npassed; report sha256:") == len(KINDS), said
    installed = {
        p["distribution"]
        for p in json.loads(made.run("-m", "astraflow_runtime", "plugins", "--json"))
    }
    assert set(DISTRIBUTIONS) <= installed

    with_run = [kind for kind in KINDS if kind != "command"]
    shown = [f"config show {folder}/run.toml" for folder in FOLDERS if "command" not in folder]
    made.run("-c", EACH, "0", *shown)
    (made.folder / "all.toml").write_text(TABLE)
    (made.folder / "world.toml").write_text(WORLD)
    assert "finished after 2 of 2 steps" in made.run("-m", "astraflow_runtime", "run", "all.toml")
    (run,) = (made.folder / "runs").iterdir()
    world = made.run("-m", "astraflow_runtime", "run", "world.toml")
    assert "environment  my_environment (my_environment 0.1.0)" in world
    assert "finished after 1 of 1 steps" in world
    used = {
        plugin["plugin"]
        for file in made.folder.glob("runs/*/plugins.json")
        for plugin in json.loads(file.read_text())
    }
    assert {f"my_{kind}" for kind in with_run} <= used
    assert "solver" in made.run("-m", "astraflow_runtime", "my-command", "--run", str(run))

    made.run("-m", "pip", "uninstall", "--quiet", "--yes", *DISTRIBUTIONS)
    refused = made.run(
        "-c", EACH, "2", *(f"run {kind}/run.toml" for kind in with_run), "my-command"
    )
    for kind in with_run:
        assert f"use: no {kind} 'my_{kind}' is installed" in refused
    assert "no command 'my-command'" in refused.splitlines()[-1]
    assert len(list((made.folder / "runs").iterdir())) == 2
