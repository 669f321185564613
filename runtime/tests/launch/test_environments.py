"""`astraflow env`: the calls of venv, pip and uv, what is kept, and the message of a failure.

The interpreter that an environment is based on is a stand-in here, a shell script that notes how it is
called and makes environments of itself; a real one is made by the tests of plugins that need it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import EngineTable
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.launch import uv_settings
from astraflow_runtime.launch.environments import create, environments, remove
from astraflow_runtime.launch.installing import packages_installed
from astraflow_runtime.launch.planning.plan import check_interpreters

STAND_IN = """#!/bin/sh
echo "$0 $@" >> {calls}
if [ "$2" = venv ]; then
    rm -rf "$4" && mkdir -p "$4/bin" && cp "{self}" "$4/bin/python"
    echo "version = 3.11.7" > "$4/pyvenv.cfg"
elif [ -e {trouble} ]; then
    echo "ERROR: no matching distribution"; exit 1
fi
"""

PARTS = """
from pathlib import Path
from astraflow_core.config.environments import PythonEnvironment
from astraflow_core.errors import UserError

def environment(extra):
    if extra not in (None, "runtime", "small"):
        raise UserError(f"no extra {extra!r}")
    return PythonEnvironment(extra or "small", (Path(__file__).with_name("pins.txt"),), ("bad",), "toy_end")
"""


@dataclass
class Base:
    python: str
    calls: Path
    trouble: Path

    def taken(self) -> list[str]:
        """The calls since the last look, with the folder of environments left out."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return [line.replace(f"{self.calls.parent}/", "") for line in lines]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Base:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASTRAFLOW_ENVIRONMENTS", raising=False)
    monkeypatch.setattr(uv_settings, "program", lambda: None)
    script, calls, trouble = tmp_path / "python", tmp_path / "calls", tmp_path / "trouble"
    script.write_text(STAND_IN.format(calls=calls, self=script, trouble=trouble))
    script.chmod(0o755)
    return Base(str(script), calls, trouble)


@pytest.fixture
def catalog(site: Any, manifest: str) -> Catalog:
    metadata = "Provides-Extra: runtime\nProvides-Extra: small\n"
    own = 'ASTRAFLOW_ENVIRONMENT = "heavy_parts:environment"\n'
    site.add("heavy", manifest + own, metadata=metadata, modules={"heavy_parts": PARTS})
    (site.folder / "pins.txt").write_text("backend==1.2\n")
    site.add("plain", manifest)
    return Catalog.discover()


def test_it_installs_ours_with_the_extra_the_pins_and_the_fixes(
    base: Base, catalog: Catalog, site: Any
) -> None:
    made = create("mine", ["heavy"], catalog, python=base.python)
    venv, install, uninstall, finish = base.taken()
    assert venv == "python -m venv --clear cache/envs/mine"
    own = "cache/envs/mine/bin/python -m pip --disable-pip-version-check --no-input"
    assert install.startswith(f"{own} install --no-compile -c ")
    assert f"-c {site.folder / 'pins.txt'} ".replace(f"{base.calls.parent}/", "") in install
    assert install.endswith(" fake-heavy[small]==1.0")
    folders = [Path(word).name for word in install.split()[:-1] if word.startswith("/")]
    assert folders == ["core", "wire", "engine_host"]
    assert uninstall == f"{own} uninstall --yes bad"
    assert finish == "cache/envs/mine/bin/python -m toy_end"
    assert made.interpreter.exists() and made.python == "3.11.7" and made.plugins == ("heavy",)


UV = """#!/bin/sh
echo "uv $@ $UV_INDEX_STRATEGY" >> {calls}
[ ! -e {trouble} ] || exit 1
"""


def test_uv_installs_where_it_means_the_same_and_pip_where_it_fails(
    base: Base, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv, trouble = base.calls.with_name("uv"), base.calls.with_name("no uv")
    uv.write_text(UV.format(calls=base.calls, trouble=f"'{trouble}'"))
    uv.chmod(0o755)
    monkeypatch.setattr(uv_settings, "program", lambda: str(uv))
    # The stand-in's pip prints how it was called, also for `pip config`: none of these lines is a setting.
    create("mine", ["heavy"], catalog, python=base.python)
    listed, install, uninstall = base.taken()[1:4]
    assert listed.endswith(" config list") and "uninstall --yes bad" in uninstall
    assert install.startswith("uv pip install --python cache/envs/mine/bin/python -c ")
    assert install.endswith(" fake-heavy[small]==1.0 unsafe-best-match")
    trouble.touch()
    told: list[str] = []
    create("other", ["heavy"], catalog, python=base.python, say=told.append)
    assert any("uv could not install them" in line for line in told)
    assert [
        line for line in base.taken() if " -m pip " in line and " install --no-compile " in line
    ]
    # With a setting that uv does not have, pip is used.
    monkeypatch.setattr(uv_settings, "translated", lambda listed: None)
    create("third", ["heavy"], catalog, python=base.python)
    assert not [line for line in base.taken() if line.startswith("uv ")]


def test_it_is_left_alone_until_what_it_is_made_from_changes(
    base: Base, catalog: Catalog, site: Any
) -> None:
    first = create("mine", ["heavy"], catalog, python=base.python)
    base.taken()
    assert create("mine", ["heavy"], catalog, python=base.python) == first
    assert base.taken() == []
    (site.folder / "pins.txt").write_text("backend==1.3\n")
    told: list[str] = []
    again = create("mine", ["heavy"], catalog, python=base.python, say=told.append)
    assert again.key != first.key and "other sources or versions" in told[0]
    assert len(base.taken()) == 4
    create("mine", ["heavy"], catalog, extra="runtime", python=base.python)
    assert any("fake-heavy[runtime]" in call for call in base.taken())
    first.interpreter.unlink()
    create("mine", ["heavy"], catalog, extra="runtime", python=base.python)
    assert first.interpreter.exists()


def test_a_failure_shows_what_pip_said_and_leaves_nothing_that_looks_whole(
    base: Base, catalog: Catalog
) -> None:
    base.trouble.touch()
    with pytest.raises(UserError, match="no matching distribution"):
        create("mine", ["heavy"], catalog, python=base.python)
    (half,) = environments()
    assert (half.name, half.plugins, half.key) == ("mine", (), "")
    base.trouble.unlink()
    assert create("mine", ["heavy"], catalog, python=base.python).key


@pytest.mark.parametrize(
    ("said", "far"),
    [
        ("", ""),
        ("Looking in indexes: x\nCollecting rich\n  Downloading rich.whl\nProcessing ./libs/wire\n", "2 packages so far"),
        ("Collecting x\nInstalling collected packages: ruamel.yaml, Markdown_It-py, rich, later\n", "2 of 4 packages"),
        ("Using Python 3.11.7 environment at: x\nResolved 57 packages in 1s\n", "57 packages"),
    ],
)  # fmt: skip
def test_how_far_an_installation_has_come(tmp_path: Path, said: str, far: str) -> None:
    log, folder = tmp_path / "log", tmp_path / "mine"
    assert packages_installed(folder, log) == ""
    log.write_text(said)
    for name in ("pip-23.2.1", "ruamel_yaml-0.18", "markdown_it_py-4.3.0"):
        (folder / "lib/python3.11/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    assert packages_installed(folder, log) == far


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "../up", "--plugin", "heavy"], "is not a name for an environment"),
        (["create", "mine", "--plugin", "heavi"], "did you mean 'heavy'"),
        (["create", "mine", "--plugin", "heavy", "--extra", "huge"], "no extra 'huge'"),
        (["create", "mine", "--plugin", "plain", "--extra", "huge"], "no extra 'huge'"),
        (
            ["create", "mine", "--plugin", "plain", "--python", "/no/python"],
            "no interpreter '/no/python'",
        ),
        (["create", "there", "--plugin", "heavy"], "belongs to plain: choose another name"),
        (["remove", "their"], "did you mean 'there'"),
    ],
)
def test_mistakes_are_named(
    base: Base,
    catalog: Catalog,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    create("there", ["plain"], catalog, python=base.python)
    assert main(["env", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [made.name for made in environments()] == ["there"]


def test_the_command_lists_makes_and_removes(
    base: Base, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*arguments: str) -> str:
        assert main(["env", *arguments]) == 0
        return capsys.readouterr().out

    assert "no environments" in printed("list")
    made = json.loads(
        printed("create", "mine", "--plugin", "plain", "--python", base.python, "--json")
    )
    assert made["use"] == "env:mine" and made["whole"] and Path(made["interpreter"]).exists()
    assert "up to date" in printed("create", "mine", "--plugin", "plain", "--python", base.python)
    assert printed("list").splitlines()[1].split()[:3] == ["mine", "plain", "3.11.7"]
    assert json.loads(printed("list", "--json")) == [made]
    assert "removed 'mine'" in printed("remove", "mine")
    assert environments() == [] and not Path(made["folder"]).exists()
    with pytest.raises(UserError, match="existing environments: none"):
        remove("mine")


def test_environments_may_have_a_folder_of_their_own(
    base: Base, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_ENVIRONMENTS", str(tmp_path / "elsewhere"))
    made = create("mine", ["plain"], catalog, python=base.python)
    assert made.folder == str(tmp_path / "elsewhere" / "mine") and environments() == [made]
    assert EngineTable(use="x", python="env:mine").python == str(made.interpreter)


def test_a_role_names_an_environment(base: Base, run_file: Path) -> None:
    folder = base.calls.parent / "cache/envs/mine"
    assert EngineTable(use="x", python="env:mine").python == str(folder / "bin/python")
    assert EngineTable(use="x", python=sys.executable).python == sys.executable
    with pytest.raises(ValueError, match="is not a name for an environment"):
        EngineTable(use="x", python="env:../mine")
    config = load_config(run_file, ["policies.solver.engine.python=env:mine"]).config
    with pytest.raises(UserError, match=r"astraflow env create mine --plugin PLUGIN.*toy_engine"):
        check_interpreters(config)
    create("mine", ["toy"], Catalog.discover(), python=base.python)
    check_interpreters(config)
