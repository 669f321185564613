"""The key ``artifact``: a packed run is copied to each host once, and installs itself there; the ssh client is a shell script."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from astraflow_contrib_ssh.config import SshConfig
from astraflow_contrib_ssh.launcher import SshLauncher
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_testing.conformance._launchers.puppets import until

INSTALLS = """
import json, pathlib, sys
into = pathlib.Path(sys.argv[sys.argv.index("--into") + 1])
with (into / "installed").open("a") as notes:
    notes.write(" ".join(sys.argv[1:]) + "\\n")
print(json.dumps({"run": str(into), "pythons": {"services": PYTHON}}))
"""
REFUSES = 'import sys\nsys.exit("astraflow unpack: was packed for Python 3.12")'


class Hosts:
    """``launcher()`` reaches host ``one``, which is this machine, by a script in the place of ssh."""

    def __init__(self, folder: Path, prelude: str = "") -> None:
        self.folder, self.into = folder, folder / "host"
        self.client = folder / "client"
        self.client.write_text(
            f'#!/bin/sh\necho called >> {folder}/calls\nfor last; do :; done\n{prelude}\nexec sh -c "$last"\n'
        )
        self.client.chmod(0o700)
        self.open: list[SshLauncher] = []

    def artifact(self, program: str) -> Path:
        path = self.folder / "run.afpack"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__main__.py", program)
            archive.writestr("wheels/large", bytes(3 << 20))
        return path

    def launcher(self, artifact: Path, **keys: Any) -> SshLauncher:
        run = RunInfo("test", 0, 1, 1, ("solver",), self.folder)
        context = ComponentContext(run, "launcher", "", 0, self.folder / "state")
        config = SshConfig(
            hosts=("one",), command=(str(self.client),), agent_python=sys.executable, connect_s=20.0,
            artifact=artifact, artifact_into=str(self.into), **keys,
        )  # fmt: skip
        self.open.append(SshLauncher(config, context))
        return self.open[-1]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    for launcher in made.open:
        launcher.close()


def spec(folder: Path) -> ProcessSpec:
    script = "import os, sys; print(sys.executable, os.getcwd())"
    return ProcessSpec("raas-0", "raas", (sys.executable, "-c", script), {}, folder / "raas-0.log")


def has_ended(launcher: SshLauncher) -> bool:
    return launcher.poll()[0].exit_code == 0


def test_processes_run_in_what_the_artifact_installed_and_it_is_copied_once(hosts: Hosts) -> None:
    python = hosts.folder / "python of the artifact"
    python.symlink_to(sys.executable)
    artifact = hosts.artifact(INSTALLS.replace("PYTHON", json.dumps(str(python))))
    for _ in range(2):
        launcher = hosts.launcher(artifact)
        launcher.prepare([spec(hosts.folder)])
        launcher.start(spec(hosts.folder))
        until(partial(has_ended, launcher), "the process to end")
        assert launcher.logs("raas-0", 1) == [f"{python} {hosts.into}"]
        launcher.close()
    (copied,) = hosts.into.glob("*.afpack")
    assert copied.read_bytes() == artifact.read_bytes()
    wanted = f"--into {hosts.into} --role services --offline"
    assert (hosts.into / "installed").read_text().splitlines() == [wanted, wanted]


@pytest.mark.parametrize(
    ("program", "prelude", "says"),
    [
        (REFUSES, "", "host 'one' cannot install the artifact: astraflow unpack: was packed for Python 3.12"),
        ("print(1)", "", "host 'one' cannot install the artifact: "),
        ("", "echo no route to host >&2; exit 255", "host 'one' cannot install the artifact: no route to host; check `"),
        ("", "exit 0", "host 'one' cannot install the artifact: it said nothing"),
        ("", "echo send; head -c 100000 > /dev/null; echo off; exit 3", "host 'one' cannot install the artifact: off"),
    ],
)  # fmt: skip
def test_a_host_that_cannot_install_it_is_named_with_the_reason(
    program: str, prelude: str, says: str, tmp_path: Path
) -> None:
    hosts = Hosts(tmp_path, prelude)
    launcher = hosts.launcher(hosts.artifact(program))
    try:
        with pytest.raises(PreflightError) as caught:
            launcher.prepare([spec(tmp_path)])
        assert str(caught.value).startswith(says)
    finally:
        launcher.close()


def test_an_artifact_that_is_changed_on_its_way_is_refused(hosts: Hosts) -> None:
    artifact = hosts.artifact("")
    launcher = hosts.launcher(artifact)
    whole = launcher._install
    launcher._install = lambda host, artifact, digest: whole(host, artifact, "0" * 64)  # type: ignore[method-assign]
    with pytest.raises(PreflightError, match="the artifact arrived incomplete or changed"):
        launcher.prepare([spec(hosts.folder)])
    assert not list(hosts.into.iterdir())


def test_what_cannot_be_is_refused_before_a_host_is_reached(hosts: Hosts) -> None:
    with pytest.raises(PreflightError, match=r"cannot be read: No such file.*astraflow pack FILE"):
        hosts.launcher(hosts.folder / "none").prepare([spec(hosts.folder)])
    assert not (hosts.folder / "calls").exists()
    with pytest.raises(ValidationError, match="host gpu-1 has python, and artifact makes"):
        SshConfig(hosts=({"name": "gpu-1", "python": "/opt/python"},), artifact="run.afpack")  # type: ignore[arg-type]
